"""A bookie that is asked to stop while a disk fails: it ends promptly, says so, and loses nothing (S27, S28)."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from bkspark.wire.status import Status
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.journal.flush_policy import FlushLimits
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.journal.journal_thread import JournalEvents, JournalThread
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.serving import Serving, adds, service_options, stored

PROMPTLY_S = 60
"""Far more than it takes; without an end it would be for ever."""


def failing_journal(files: FaultyFiles, code: int) -> None:
    files.code = code
    files.fault = lambda operation, path: "journal" in path and operation in ("sync_data", "write")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_stop_while_the_journal_fails_ends_with_its_error(tmp_path: Path, code: int) -> None:
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"acknowledged"]) == [Status.EOK]
        failing_journal(files, code)
        peer.send(adds(5, 1, [b"z" * 20_000] * 40))
        # Whether the journal's thread, the stop's checkpoint or the event loop meets it first.
        stopping = threading.Thread(target=serving.__exit__, args=(None, None, None))
        stopping.start()
        stopping.join(PROMPTLY_S)
        assert not stopping.is_alive()
    assert isinstance(serving.failure, OSError)
    assert serving.failure.errno == code
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"acknowledged")


@pytest.mark.parametrize("operation", ["write", "sync_data"])
def test_stop_whose_last_flush_fails_is_not_an_orderly_stop(tmp_path: Path, operation: str) -> None:
    """EIO in the only ledger directory: the entry is in the journal, and the exit code must not be 0."""
    files = FaultyFiles()
    with Serving(service_options(tmp_path), files) as serving, serving.connect() as peer:
        assert peer.add(5, 0, [b"acknowledged"]) == [Status.EOK]
        files.fault = lambda done, path: "ledgers" in path and done == operation
    assert isinstance(serving.failure, OSError)
    assert (tmp_path / "ledgers" / "current" / "DIRTY").exists()
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"acknowledged")


class Posted:
    """An event loop's end of a journal's thread: nothing is called back but what tests wait for."""

    def __init__(self) -> None:
        self.failed: Future[BaseException] = Future()

    def call_soon(self, callback: object) -> None: ...

    def call_later(self, delay: float, callback: object) -> threading.Timer:
        return threading.Timer(delay, lambda: None)

    def on_failure(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


def test_every_mark_gets_the_error_of_a_journal_that_failed(tmp_path: Path) -> None:
    """Queued before the failure, with it, and requested after it."""
    files = FaultyFiles()
    loop = Posted()
    events = JournalEvents(
        lambda sequence: None, lambda sequence: None, loop.on_failure, lambda call, *arguments: call(*arguments)
    )
    journal = Journal(files, str(tmp_path), JournalOptions(), JournalPosition(0, 0))
    thread = JournalThread(journal, FlushLimits(), events, loop, "journal", commits_inline=False)
    record = Record.of(RecordKind.FENCE, 1, bytes(8))
    thread.submit([record])
    marks = []
    for _ in range(3):
        thread.submit([record])
        marks.append(thread.take_mark())
    files.fault = lambda operation, path: operation == "sync_data"
    thread.start()
    assert isinstance(loop.failed.result(PROMPTLY_S), OSError)
    thread.join()
    marks.append(thread.take_mark())
    for mark in marks:
        assert isinstance(mark.exception(PROMPTLY_S), OSError)
