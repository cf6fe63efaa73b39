"""Whether a bookie may use its directories: the decision, case by case, and then on real directories."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import ConfigurationError, MetadataError
from bkspark.metadata import cookies
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.uri import MetadataUri
from bookie_service.cluster.identity import DirectoryState, Identity, StartDecision, check_cookie
from bookie_service.formats import entry_log, journal
from bookie_service.formats import marks as mark_format
from bookie_service.storage import layout
from bookie_service.storage.io.closed_directories import OpenDirectories
from bookie_service.storage.io.files import DISK_FAILURES, LocalFiles, is_disk_failure
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.bookie.faulty_files import GoneFiles

OURS = Cookie("b-1", ("/j",), ("/l1", "/l2"), "instance")
STAMPED = DirectoryState(OURS, True)
FRESH_STAMP = DirectoryState(OURS, False)
EMPTY = DirectoryState(None, False)
EMPTIED = DirectoryState(OURS, False, has_marks=False)


def all_as(state: DirectoryState, **others: DirectoryState) -> dict[str, DirectoryState]:
    return dict.fromkeys(("/j", "/l1", "/l2"), state) | {f"/{name}": other for name, other in others.items()}


def test_known_bookie_with_all_its_directories_starts() -> None:
    assert check_cookie(OURS, OURS, all_as(STAMPED)) is StartDecision.OURS
    assert check_cookie(OURS, OURS, all_as(FRESH_STAMP)) is StartDecision.OURS


def test_cookie_that_names_the_ledger_directories_as_index_directories_is_the_same() -> None:
    """#3308: Apache's tools write them, and a cookie without them means the same."""
    explicit = replace(OURS, index_directories=OURS.ledger_directories)
    assert check_cookie(OURS, explicit, all_as(STAMPED)) is StartDecision.OURS
    assert check_cookie(OURS, OURS, all_as(DirectoryState(explicit, True))) is StartDecision.OURS
    with pytest.raises(ConfigurationError, match="index directories /i instead of /l1,/l2"):
        check_cookie(OURS, replace(OURS, index_directories=("/i",)), all_as(STAMPED))


def test_new_bookie_and_interrupted_first_boot_are_stamped() -> None:
    assert check_cookie(OURS, None, all_as(EMPTY)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(EMPTY, j=FRESH_STAMP)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(FRESH_STAMP)) is StartDecision.STAMP
    assert check_cookie(OURS, None, all_as(EMPTY, l1=EMPTIED)) is StartDecision.STAMP


@pytest.mark.parametrize(
    ("stored", "found", "complaint"),
    [
        (OURS, all_as(EMPTY), "directory /j of bookie b-1 has lost its contents"),
        (OURS, all_as(STAMPED, l2=EMPTY), "directory /l2 of bookie b-1 has lost its contents"),
        (OURS, all_as(STAMPED, l2=EMPTIED), "directory /l2 of bookie b-1 has lost its contents (no lastMark)"),
        (OURS, all_as(STAMPED, l2=DirectoryState(None, True)), "directory /l2 holds a bookie's files but no cookie"),
        (None, all_as(EMPTY, l1=DirectoryState(None, True)), "directory /l1 holds a bookie's files but no cookie"),
        (None, all_as(FRESH_STAMP, j=STAMPED), "the cluster does not know bookie b-1"),
        (
            OURS,
            all_as(STAMPED, l1=DirectoryState(replace(OURS, bookie_id="b-2"), True)),
            "directory /l1 belongs to another bookie or cluster: bookie id b-2 instead of b-1",
        ),
        (
            None,
            all_as(DirectoryState(replace(OURS, instance_id="elsewhere"), True)),
            "cluster instance id elsewhere instead of instance",
        ),
        (
            OURS,
            all_as(STAMPED, l1=DirectoryState(OURS, True, place="/l2"), l2=DirectoryState(OURS, True, place="/l1")),
            "directory /l1 holds what belongs at /l2: mount or move each where it was",
        ),
        (
            OURS,
            all_as(STAMPED, l2=DirectoryState(OURS, False, foreign="lastMark")),
            "directory /l2 is an Apache bookie's: this bookie cannot read its lastMark",
        ),
        (replace(OURS, ledger_directories=("/l1",)), all_as(EMPTY), "with other facts: ledger directories /l1 instead"),
    ],
)
def test_anything_else_refuses_and_says_what_and_why(
    stored: Cookie | None, found: dict[str, DirectoryState], complaint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_cookie(OURS, stored, found)
    assert complaint in str(caught.value)
    assert "new bookieId" in str(caught.value)


# ---- real directories and a metadata store ----


class Bookie:
    """The directories of one bookie, and the store that knows it."""

    def __init__(self, room: Path, journals: int = 2) -> None:
        self.journals = tuple(str(room / f"journal{number}") for number in range(journals))
        self.ledgers = tuple(str(room / f"ledgers{number}") for number in range(2))
        self.files = LocalFiles()
        self.store = MemoryStore()
        self.registry = BookieRegistry(self.store.session(), MetadataUri.parse("zk://h/ledgers"))
        asyncio.run(self.registry.initialize_cluster())

    @property
    def directories(self) -> tuple[str, ...]:
        return self.journals + self.ledgers

    def identity(self) -> Identity:
        return Identity(self.files, self.journals, self.ledgers)

    def start(self, bookie_id: str = "b-1") -> Identity:
        identity = self.identity()
        try:
            asyncio.run(identity.establish(self.registry, bookie_id))
        except BaseException:
            identity.release()
            raise
        return identity

    def start_and_stop(self) -> None:
        self.start().release()

    def refusal(self, bookie_id: str = "b-1") -> str:
        with pytest.raises(ConfigurationError) as caught:
            self.start(bookie_id)
        return str(caught.value)

    def contents(self) -> dict[str, bytes]:
        """Return each file below the directories, by its path."""
        found = {}
        for directory in self.directories:
            found |= {str(each): each.read_bytes() for each in Path(directory).rglob("*") if each.is_file()}
        return found


def test_first_start_stamps_every_directory_and_then_the_cluster(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    stored = asyncio.run(bookie.registry.read_cookie("b-1"))
    assert stored is not None
    expected = Cookie("b-1", bookie.journals, bookie.ledgers, asyncio.run(bookie.registry.instance_id()))
    assert stored.cookie == expected
    contents = bookie.contents()
    marks = {mark_format.file_name(0), mark_format.file_name(1)}
    for directory in bookie.directories:
        names = {os.path.basename(path) for path in contents if path.startswith(f"{directory}/")}
        assert names == {"VERSION", "place"} | (marks if directory in bookie.ledgers else set())
        assert cookies.decode(contents[layout.cookie_path(directory)], "") == expected
        assert layout.decode_place(contents[layout.place_path(directory)]) == directory


def test_later_starts_change_only_a_place_that_was_not_written(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    before, writes = bookie.contents(), bookie.store.writes
    bookie.start_and_stop()
    assert (bookie.contents(), bookie.store.writes) == (before, writes)
    # A bookie of an earlier release, or a crash, left no such file.
    lost = layout.place_path(bookie.ledgers[1])
    os.remove(lost)
    kept = os.stat(layout.place_path(bookie.ledgers[0])).st_ino
    bookie.start_and_stop()
    assert bookie.contents() == before
    assert os.stat(layout.place_path(bookie.ledgers[0])).st_ino == kept, "those that were there are not written again"


def test_first_start_that_ended_in_the_middle_is_finished_by_the_next(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.store.faults = {bookie.store.writes: Fault.LOST_BEFORE}
    with pytest.raises(MetadataError):
        bookie.start()
    os.remove(layout.cookie_path(bookie.ledgers[0]))
    os.remove(os.path.join(layout.current(bookie.ledgers[1]), mark_format.file_name(1)))
    bookie.start_and_stop()
    assert len(bookie.contents()) == 4 * 2 + 2 * 2


def test_directories_of_a_bookie_that_runs_are_in_use_and_free_when_it_has_ended(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    identity = bookie.start()
    assert f"directory {bookie.journals[0]} is in use by another process" in bookie.refusal()
    identity.release()
    identity.release()
    bookie.start_and_stop()


def test_one_directory_may_have_journal_and_ledgers(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, journals=1)
    bookie.journals = bookie.ledgers[:1]
    bookie.start_and_stop()
    bookie.start_and_stop()
    assert len(bookie.contents()) == 2 * 3


@pytest.mark.parametrize("at", [0, 2, 3])
def test_directory_that_lost_what_it_held_refuses_the_start_and_is_left_as_it_is(tmp_path: Path, at: int) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    lost = bookie.directories[at]
    shutil.rmtree(layout.current(lost))
    assert f"directory {lost} of bookie b-1 has lost its contents" in bookie.refusal()
    assert not os.path.exists(layout.current(lost))
    shutil.rmtree(lost)
    assert f"directory {lost} of bookie b-1 has lost its contents" in bookie.refusal()
    assert not os.path.exists(lost)


@pytest.mark.parametrize("number", [0, 1])
def test_ledger_directory_without_the_mark_of_one_journal_was_emptied(tmp_path: Path, number: int) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    os.remove(os.path.join(layout.current(bookie.ledgers[1]), mark_format.file_name(number)))
    assert f"directory {bookie.ledgers[1]} of bookie b-1 has lost its contents" in bookie.refusal()


@pytest.mark.parametrize("change", ["reordered", "removed", "added"])
def test_other_ledger_directories_than_before_refuse_the_start_and_change_nothing(tmp_path: Path, change: str) -> None:
    """The place of a ledger follows from the number of its directory: a bookie would deny what it has."""
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    before, (first, second), new = bookie.contents(), bookie.ledgers, str(tmp_path / "new")
    bookie.ledgers = {"reordered": (second, first), "removed": (first,), "added": (first, second, new)}[change]
    assert f"ledger directories {first},{second} instead of {','.join(bookie.ledgers)}" in bookie.refusal()
    assert not Path(new).exists()
    bookie.ledgers = (first, second)
    assert bookie.contents() == before
    bookie.start_and_stop()


def test_cookie_that_cannot_be_read_refuses_the_start_and_names_its_file(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    path = layout.cookie_path(bookie.ledgers[0])
    Path(path).write_bytes(b"?")
    refusal = bookie.refusal()
    assert path in refusal
    assert "the other directories of this bookie hold the same" in refusal


def test_directories_of_another_bookie_refuse_the_start(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    assert "bookie id b-1 instead of b-2" in bookie.refusal("b-2")
    os.rename(bookie.ledgers[0], tmp_path / "moved")
    os.rename(bookie.ledgers[1], bookie.ledgers[0])
    os.rename(tmp_path / "moved", bookie.ledgers[1])
    assert f"directory {bookie.ledgers[0]} holds what belongs at {bookie.ledgers[1]}" in bookie.refusal()


@pytest.mark.parametrize("name", [journal.file_name(5), entry_log.file_name(7)])
def test_data_without_a_cookie_refuse_the_start_of_a_new_bookie(tmp_path: Path, name: str) -> None:
    bookie = Bookie(tmp_path)
    current = Path(layout.current(bookie.ledgers[0]))
    current.mkdir(parents=True)
    (current / "lost+found").mkdir()
    (current / name).write_bytes(b"")
    assert f"directory {bookie.ledgers[0]} holds a bookie's files but no cookie" in bookie.refusal()
    os.remove(current / name)
    bookie.start_and_stop()


@pytest.mark.parametrize("name", ["lastMark", "18f3a.txn"])
def test_directory_of_apaches_bookie_is_named_with_the_file_that_shows_it(tmp_path: Path, name: str) -> None:
    """Its first mark has the name of ours; its journals have names that ours never have."""
    bookie = Bookie(tmp_path)
    current = Path(layout.current(bookie.ledgers[0]))
    current.mkdir(parents=True)
    (current / "a").write_bytes(bytes(mark_format.APACHE_MARK_BYTES))
    (current / name).write_bytes(bytes(mark_format.APACHE_MARK_BYTES))
    refusal = bookie.refusal()
    assert f"directory {bookie.ledgers[0]} is an Apache bookie's: this bookie cannot read its {name}" in refusal


def test_mark_of_ours_is_not_taken_for_apaches(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    current = Path(layout.current(bookie.ledgers[0]))
    current.mkdir(parents=True)
    (current / "lastMark").write_bytes(mark_format.encode_mark(mark_format.NO_JOURNAL))
    bookie.start_and_stop()


# ---- disks that cannot be read ----


def gone(*directories: str) -> GoneFiles:
    """Return files of which those in some directories cannot be read."""
    files = GoneFiles()
    files.fault = lambda operation, path: f"{path}/".startswith(tuple(f"{each}/" for each in directories))
    return files


READING = {"open", "stat", "names", "read"}


@pytest.mark.parametrize(
    ("operations", "name"),
    [*((READING, name) for name in DISK_FAILURES), *(({operation}, "EIO") for operation in sorted(READING))],
)
def test_known_bookie_starts_without_a_ledger_directory_that_cannot_be_read(
    tmp_path: Path, operations: set[str], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    code = getattr(errno, name)
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    before = bookie.contents()
    bookie.files = gone(bookie.ledgers[1])
    bookie.files.code = code
    everywhere = bookie.files.fault
    assert everywhere is not None
    bookie.files.fault = lambda operation, path: operation in operations and everywhere(operation, path)
    identity = bookie.start()
    assert list(identity.unreadable) == [bookie.ledgers[1]]
    assert f"ledger directory {bookie.ledgers[1]} cannot be read ({os.strerror(code)})" in caplog.text
    identity.release()
    assert bookie.contents() == before
    bookie.files = LocalFiles()
    assert not bookie.start().unreadable


def test_new_bookie_does_not_start_without_a_ledger_directory_that_cannot_be_read(tmp_path: Path) -> None:
    """It may hold another bookie's data, or be a disk that is not mounted."""
    bookie = Bookie(tmp_path)
    current = layout.current(bookie.ledgers[1])
    Path(current).mkdir(parents=True)
    bookie.files = gone(bookie.ledgers[1])
    bookie.files.fault = lambda operation, path: (operation, path) == ("names", current)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        bookie.start()
    assert bookie.contents() == {}
    assert asyncio.run(bookie.registry.read_cookie("b-1")) is None


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC])
def test_directory_of_an_earlier_version_gets_its_place_when_its_disk_takes_it(tmp_path: Path, code: int) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    before = bookie.contents()
    place = layout.place_path(bookie.ledgers[1])
    os.unlink(place)
    bookie.files = gone(bookie.ledgers[1])
    bookie.files.code = code
    everywhere = bookie.files.fault
    assert everywhere is not None
    bookie.files.fault = lambda operation, path: operation in {"create", "write"} and everywhere(operation, path)
    bookie.start_and_stop()
    assert not os.path.exists(place)
    bookie.files = LocalFiles()
    bookie.start_and_stop()
    assert bookie.contents() == before


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_journal_directory_that_takes_no_place_refuses_the_start(tmp_path: Path, code: int) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    os.unlink(layout.place_path(bookie.directories[0]))
    bookie.files = gone(bookie.directories[0])
    bookie.files.code = code
    everywhere = bookie.files.fault
    assert everywhere is not None
    bookie.files.fault = lambda operation, path: operation in {"create", "write"} and everywhere(operation, path)
    with pytest.raises(OSError, match=os.strerror(code)):
        bookie.start()


def test_what_a_directory_holds_does_not_count_if_its_disk_failed_a_moment_before(tmp_path: Path) -> None:
    """A disk that fails now and then may not show all that it holds: an empty directory would refuse the start."""
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    shutil.rmtree(layout.current(bookie.ledgers[1]))
    bookie.files = gone(bookie.ledgers[1])
    bookie.files.fault = lambda operation, path: (operation, path) == ("open", bookie.ledgers[1])
    identity = bookie.start()
    assert list(identity.unreadable) == [bookie.ledgers[1]]
    assert not os.path.exists(layout.current(bookie.ledgers[1]))
    identity.release()


@pytest.mark.parametrize("which", [(0,), (2, 3), (0, 1, 2, 3)], ids=["a journal", "all ledgers", "everything"])
def test_bookie_does_not_start_without_its_journal_or_without_all_ledger_directories(
    tmp_path: Path, which: tuple[int, ...]
) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    bookie.files = gone(*(bookie.directories[each] for each in which))
    with pytest.raises(OSError, match="Input/output error"):
        bookie.start()


def test_first_start_needs_every_directory(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.files = gone(bookie.ledgers[1])
    with pytest.raises(OSError, match="Input/output error"):
        bookie.start()
    assert not bookie.contents()


def test_directory_that_belongs_elsewhere_is_found_while_another_cannot_be_read(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path)
    bookie.start_and_stop()
    bookie.files = gone(bookie.ledgers[1])
    assert "bookie id b-1 instead of b-2" in bookie.refusal("b-2")


def test_nothing_is_done_in_a_closed_directory_even_if_its_disk_works_again(tmp_path: Path) -> None:
    closed, beside = tmp_path / "b", tmp_path / "b2"
    for each in (closed, beside):
        each.mkdir()
        (each / "x").write_bytes(b"data")
    files = OpenDirectories([str(closed)])
    taking_a_path = [
        name
        for name, method in inspect.getmembers(LocalFiles, inspect.isfunction)
        if not name.startswith("_") and {"path", "directory", "old"} & inspect.signature(method).parameters.keys()
    ]
    assert len(taking_a_path) > 15
    path = str(closed / "x")
    arguments: dict[str, tuple[Any, ...]] = {
        "rename": (path, path),
        "replace": (path, b""),
        "open_key_values": (path, KeyValueOptions()),
    }
    for name in set(taking_a_path) - {"is_closed"}:
        with pytest.raises(OSError, match="the disk could not be read at the start") as refused:
            getattr(files, name)(*arguments.get(name, (path,)))
        assert is_disk_failure(refused.value)
    assert [files.is_closed(str(each)) for each in (closed, closed / "x", beside)] == [True, True, False]
    assert files.read_all(str(beside / "x")) == b"data"
    assert (closed / "x").read_bytes() == b"data"
    assert files.exists(str(beside / "x"))
    assert not files.exists(str(beside / "y"))
