"""The threads that read for the event loop: what they hand over, one at a time each, and how they end."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bookie_service.storage.io.byte_source import Fetched, FileRange
from bookie_service.storage.io.fetching import FetchThreads
from bookie_service.storage.io.files import File, LocalFiles
from tests.polling import wait_until


class Loop:
    """An event loop whose calls a test makes; `failures` is what ends the process."""

    def __init__(self, threads: int, files: LocalFiles | None = None, directories: Sequence[str] = ()) -> None:
        self.posted: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = queue.SimpleQueue()
        self.failures: list[BaseException] = []
        self.threads = FetchThreads(
            files or LocalFiles(),
            threads,
            lambda callback, *values: self.posted.put((callback, values)),
            self.failures.append,
            directories,
        )
        self.threads.start()

    def turn(self) -> None:
        """Make the next call that a thread posts."""
        callback, values = self.posted.get(timeout=60)
        callback(*values)

    def stop(self) -> None:
        self.threads.stop()
        self.threads.join()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(1)
    yield made
    made.stop()


def test_fetched_bytes_are_those_of_the_place_and_fewer_at_the_end(loop: Loop, tmp_path: Path) -> None:
    path = str(tmp_path / "1.log")
    LocalFiles().replace(path, bytes(range(200)))
    before = os.listdir("/proc/self/fd")
    found: list[Fetched] = []
    for place in (FileRange(path, 10, 5), FileRange(path, 190, 50)):
        loop.threads.fetch(place, found.append)
        loop.turn()
    assert [(it.place.offset, it.data, it.error) for it in found] == [
        (10, bytes(range(10, 15)), None),
        (190, bytes(range(190, 200)), None),
    ]
    assert os.listdir("/proc/self/fd") == before


def test_error_of_a_disk_is_handed_over_and_the_thread_goes_on(loop: Loop, tmp_path: Path) -> None:
    found: list[Fetched] = []
    loop.threads.fetch(FileRange(str(tmp_path / "gone.log"), 0, 5), found.append)
    loop.turn()
    assert isinstance(found[0].error, FileNotFoundError)
    before = os.listdir("/proc/self/fd")
    loop.threads.fetch(FileRange(str(tmp_path), 0, 5), found.append)  # opens, and cannot be read
    loop.turn()
    assert isinstance(found[1].error, OSError)
    assert os.listdir("/proc/self/fd") == before
    loop.threads.run(lambda: 7, found.append)
    loop.turn()
    assert found[2] == 7
    assert loop.failures == []


def test_thread_begins_nothing_before_what_it_read_is_taken(loop: Loop) -> None:
    """Bytes that wait for the event loop are bounded by the number of threads."""
    begun: list[int] = []
    for number in range(3):
        loop.threads.run(lambda number=number: begun.append(number), lambda _: None)  # type: ignore[misc]
    call = loop.posted.get(timeout=60)
    assert begun == [0]
    assert loop.posted.empty()
    call[0](*call[1])
    loop.turn()
    loop.turn()
    assert begun == [0, 1, 2]


def test_disk_that_stalls_keeps_no_thread_from_reads_of_the_others(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b", "c")]
    for directory in directories:
        os.mkdir(directory)
        LocalFiles().replace(f"{directory}/1.log", bytes(range(10)))
    released = threading.Event()

    class Files(LocalFiles):
        def open(self, path: str) -> File:
            if path.startswith(directories[1]):
                released.wait(60)
            return super().open(path)

    loop = Loop(2, Files(), directories)
    found: list[Fetched] = []
    for directory in [directories[1]] * 5 + directories[:1] + directories[2:]:
        loop.threads.fetch(FileRange(f"{directory}/1.log", 0, 5), found.append)
    ran: list[int] = []
    loop.threads.run(lambda: 7, ran.append)
    for _ in range(3):
        loop.turn()
    assert sorted(os.path.dirname(each.place.path) for each in found) == [directories[0], directories[2]]
    assert ran == [7]
    wait_until(lambda: loop.threads.waiting == 4, "the thread of the stalled disk to begin")
    released.set()
    for _ in range(5):
        loop.turn()
    assert [each.data for each in found] == [bytes(range(5))] * 7
    loop.stop()


def test_directories_share_the_threads_and_each_has_one(tmp_path: Path) -> None:
    for threads, directories, wanted in ((8, 1, 8), (8, 2, 12), (8, 3, 12), (2, 4, 5)):
        made = Loop(threads, directories=[f"/{number}" for number in range(directories)])
        assert made.threads.threads == wanted, "those of the directories, and as many as one has for all else"
        made.stop()


def test_error_of_our_own_ends_the_process(loop: Loop) -> None:
    error = ValueError("an error of our own")

    def fail() -> None:
        raise error

    loop.threads.run(fail, lambda _: None)
    loop.turn()
    assert loop.failures == [error]


def test_error_of_a_callback_reaches_the_event_loop_and_the_thread_goes_on(loop: Loop) -> None:
    def fail(_: object) -> None:
        raise ValueError("not taken")

    loop.threads.run(lambda: 1, fail)
    with pytest.raises(ValueError, match="not taken"):
        loop.turn()
    found: list[int] = []
    loop.threads.run(lambda: 2, found.append)
    loop.turn()
    assert found == [2]


def test_stop_ends_threads_that_wait_and_those_whose_result_is_not_taken() -> None:
    loop = Loop(2)
    loop.threads.run(lambda: 1, lambda _: None)
    loop.posted.get(timeout=60)  # and never taken
    loop.threads.run(lambda: 2, lambda _: None)
    loop.posted.get(timeout=60)
    begun: list[int] = []
    loop.threads.run(lambda: begun.append(3), lambda _: None)
    loop.stop()
    assert begun == []
    assert loop.failures == []
