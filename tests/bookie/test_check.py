"""`bkspark bookie --check`: a whole folder passes, and each kind of damage is named with file and offset."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bkspark.cli.__main__ import main as bkspark
from bkspark.metadata import cookies
from bkspark.wire.digest import DigestType, EntryDigest
from bookie_service.admin import dump
from bookie_service.admin.check import BookieCheck
from bookie_service.admin.shutdown import ShutdownSignals
from bookie_service.formats import compaction, tombstones
from bookie_service.formats.index import LAYOUT
from bookie_service.process import main
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from tests.bookie.faulty_files import GoneFiles
from tests.bookie.folders import FENCED, LARGE_PAYLOADS, SMALL, SMALL_PAYLOADS, Folder, add, cut, flip
from tests.bookie.serving import Serving, adds, service_options, stored

Capture = pytest.CaptureFixture[str]


def check(folder: Folder, capsys: Capture) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what was found."""
    code = main(["--check", "--json", *folder.settings], ShutdownSignals())
    output = capsys.readouterr()
    assert output.err == ""
    return code, json.loads(output.out)


def damage(folder: Folder, capsys: Capture) -> list[tuple[str, int]]:
    """Return (file, offset) of everything that is damaged, which is something."""
    code, report = check(folder, capsys)
    assert (code, report["ok"]) == (1, False)
    assert report["damaged"] == len(report["damage"])
    return [(each["file"], each["offset"]) for each in report["damage"]]


# ---- whole folders ----


def test_whole_folder_passes_with_everything_counted(stopped: Folder, capsys: Capture) -> None:
    code, report = check(stopped, capsys)
    assert (code, report["ok"], report["damage"], report["notes"]) == (0, True, [], [])
    counts = {"cookies": 2, "marks": 1, "journal_files": 1, "journal_entries": 0, "entry_logs": 2, "ledgers": 2}
    counts |= {"logged_entries": 35, "positions": 35, "unindexed_entries": 0, "unverified_entries": 0}
    assert {name: report[name] for name in counts} == counts


def test_ledgers_whose_digests_only_a_client_can_check_are_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged entry of such a ledger looks as a whole one does; nothing else says that it was not looked at."""
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        for ledger_id, digest_type in ((5, DigestType.MAC), (6, DigestType.CRC32C)):
            peer.send(adds(ledger_id, 0, [b"x"] * 3, digest=EntryDigest(digest_type, b"secret")))
            assert [reply.status for reply in peer.replies(3)] == [0, 0, 0]
    folder = Folder(tmp_path)
    _, report = check(folder, capsys)
    assert report["unverified_ledgers"] == [5]
    assert any("ledgers 5: " in note and "BKSPARK_PASSWORD" in note for note in report["notes"])
    monkeypatch.setenv("BKSPARK_PASSWORD", "secret")
    _, report = check(folder, capsys)
    assert (report["unverified_ledgers"], report["unverified_entries"]) == ([], 0)


def test_folder_after_a_crash_passes_and_the_journal_holds_the_rest(crashed: Folder, capsys: Capture) -> None:
    code, report = check(crashed, capsys)
    assert (code, report["damage"]) == (0, [])
    assert (report["positions"], report["journal_entries"]) == (30, 5)


def test_torn_last_record_is_a_note_and_not_damage(crashed: Folder, capsys: Capture) -> None:
    path = crashed.journal(2)
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - 10].ljust(len(data), b"\0"))
    code, report = check(crashed, capsys)
    assert code == 0
    (note,) = report["notes"]
    assert str(path) in note


def test_entries_of_a_deleted_ledger_are_counted_and_no_damage(stopped: Folder, capsys: Capture) -> None:
    IndexManifestWriter(LocalFiles(), [str(stopped.ledgers)]).note({SMALL: 0})
    stopped.small_index.unlink()
    code, report = check(stopped, capsys)
    assert (code, report["unindexed_entries"]) == (0, 25)


@pytest.mark.parametrize("size", [None, 0, 600, LAYOUT.position_at(20), LAYOUT.position_at(25) - 1])
def test_index_file_that_is_removed_or_cut_is_damage(stopped: Folder, capsys: Capture, size: int | None) -> None:
    if size is None:
        stopped.small_index.unlink()
    else:
        cut(stopped.small_index, size)
    code, report = check(stopped, capsys)
    assert code == 1
    found = [each for each in report["damage"] if "--rebuild-index" in each["reason"]]
    assert [(each["file"], each["offset"], each["ledger"]) for each in found] == [
        (str(stopped.small_index), size or 0, SMALL)
    ]


def test_damaged_list_of_index_files_is_noted(stopped: Folder, capsys: Capture) -> None:
    flip(stopped.ledgers / "indexFiles", 20)
    code, report = check(stopped, capsys)
    assert code == 0
    assert any("indexFiles offset 20: torn or damaged" in note for note in report["notes"])


def test_nothing_is_changed_and_the_directories_are_free_again(crashed: Folder, capsys: Capture) -> None:
    before = crashed.state()
    check(crashed, capsys)
    assert crashed.state() == before
    LocalFiles().lock(str(crashed.directory / "journal")).release()


def test_people_get_a_verdict(stopped: Folder, capsys: Capture) -> None:
    assert main(["--check", *stopped.settings], ShutdownSignals()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the bookie's folder is undamaged"
    flip(stopped.small_index, LAYOUT.positions_at)
    assert main(["--check", *stopped.settings], ShutdownSignals()) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"DAMAGED {stopped.small_index} offset {LAYOUT.positions_at}: ")
    assert lines[-1] == "the bookie's folder is damaged"


# ---- damage ----


def test_flipped_byte_of_an_entry_is_named(stopped: Folder, capsys: Capture) -> None:
    log = stopped.ledgers / "1.log"
    item = log.read_bytes().index(stored(FENCED, 9, LARGE_PAYLOADS[9])) - 4
    flip(log, item + 500)
    assert damage(stopped, capsys) == [(str(log), item)]


def test_flipped_id_of_an_entry_is_named_in_log_and_index(stopped: Folder, capsys: Capture) -> None:
    log = stopped.ledgers / "2.log"
    flip(log, 1024 + 4 + 15)
    assert set(damage(stopped, capsys)) >= {(str(log), 1024), (str(stopped.small_index), LAYOUT.position_at(20))}


def test_truncated_entry_log_is_named_with_where_it_ends(stopped: Folder, capsys: Capture) -> None:
    log = stopped.ledgers / "2.log"
    last = log.read_bytes().index(stored(SMALL, 24, SMALL_PAYLOADS[24])) - 4
    cut(log, last + 10)
    found = damage(stopped, capsys)
    assert (str(stopped.small_index), LAYOUT.position_at(24)) in found
    assert all(offset >= last for path, offset in found if path == str(log))


def test_flipped_byte_of_a_ledgers_map_is_named(stopped: Folder, capsys: Capture) -> None:
    log = stopped.ledgers / "1.log"
    map_offset = int.from_bytes(log.read_bytes()[8:16], "big")
    flip(log, log.stat().st_size - 1)
    assert damage(stopped, capsys) == [(str(log), map_offset)]


def test_missing_entry_log_is_named_by_every_position_in_it(stopped: Folder, capsys: Capture) -> None:
    (stopped.ledgers / "2.log").unlink()
    assert damage(stopped, capsys) == [
        (str(stopped.small_index), LAYOUT.position_at(entry_id)) for entry_id in range(20, 25)
    ]


@pytest.mark.parametrize(("offset", "named"), [(30, 0), (4126, 4096), (8192, 8192), (8192 + 8 * 7 + 5, 8192 + 8 * 7)])
def test_flipped_byte_of_an_index_is_named(offset: int, named: int, stopped: Folder, capsys: Capture) -> None:
    flip(stopped.small_index, offset)
    assert damage(stopped, capsys) == [(str(stopped.small_index), named)]


def test_position_that_points_to_another_entry_is_named(stopped: Folder, capsys: Capture) -> None:
    data = bytearray(stopped.small_index.read_bytes())
    at = LAYOUT.position_at
    data[at(3) : at(4)] = data[at(5) : at(6)]
    stopped.small_index.write_bytes(data)
    assert damage(stopped, capsys) == [(str(stopped.small_index), LAYOUT.position_at(3))]


@pytest.mark.parametrize("entries_left", [0, 18])
def test_truncated_index_is_named_though_its_length_alone_tells_nothing(
    entries_left: int, stopped: Folder, capsys: Capture
) -> None:
    cut(stopped.small_index, LAYOUT.position_at(entries_left))
    found = damage(stopped, capsys)
    assert found[0] == (str(stopped.small_index), LAYOUT.position_at(entries_left))
    assert {path for path, _ in found} == {str(stopped.small_index)}


def test_header_that_a_crash_left_unwritten_is_a_note_while_the_journal_holds_it(
    stopped: Folder, capsys: Capture
) -> None:
    with Serving(service_options(stopped.directory)) as serving, serving.connect() as peer:
        add(peer, 9, 0, [b"new"])
        serving.abandon()
    path = stopped.ledgers / "0" / "9" / "9.idx"
    path.parent.mkdir()
    path.write_bytes(bytes(LAYOUT.positions_at))
    code, report = check(stopped, capsys)
    assert code == 0
    assert len(report["notes"]) == 2
    assert all(str(path) in note for note in report["notes"])


def test_flipped_byte_of_a_record_that_replay_needs_is_named(crashed: Folder, capsys: Capture) -> None:
    # The first of two records: the second proves that it was durable. Groups begin at multiples of the block size.
    begin = max(512, LocalFiles().block_bytes(str(crashed.journals)))
    flip(crashed.journal(2), begin + 48 + 20)
    assert damage(crashed, capsys) == [(str(crashed.journal(2)), begin)]


def test_damage_in_a_journal_before_the_mark_does_no_harm(stopped: Folder, capsys: Capture) -> None:
    flip(stopped.journal(1), 700)
    assert check(stopped, capsys)[0] == 0


def test_truncated_journal_is_named_with_where_it_ends(stopped: Folder, capsys: Capture) -> None:
    cut(stopped.journal(2), stopped.marked - 1)
    assert damage(stopped, capsys) == [(str(stopped.journal(2)), stopped.marked - 1)]


@pytest.mark.parametrize("is_lost", [True, False])
def test_newest_journal_file_that_the_one_before_names_is_missed(
    tmp_path: Path, capsys: Capture, is_lost: bool
) -> None:
    """Fault D12: no mark and no later file names it."""
    options = service_options(tmp_path / "served", journal=JournalOptions(file_bytes_max=2000))
    with Serving(options) as serving, serving.connect() as peer:
        for entry_id in range(5):
            add(peer, SMALL, entry_id, [bytes(600)])
        serving.abandon()
    folder = Folder.copy(tmp_path / "served", tmp_path / "looked-at")
    newest = max(folder.journals.glob("*.txn"))
    assert check(folder, capsys)[1]["damage"] == []
    if is_lost:
        newest.unlink()
    else:
        newest.write_bytes(b"")
    assert damage(folder, capsys) == [(str(newest), 0)]


def test_missing_journal_file_is_named(stopped: Folder, capsys: Capture) -> None:
    stopped.journal(2).unlink()
    assert damage(stopped, capsys) == [(str(stopped.journal(2)), 0)]


@pytest.mark.parametrize("name", ["lastMark", "lastId"])
def test_damaged_mark_and_last_id_are_named(name: str, stopped: Folder, capsys: Capture) -> None:
    path = stopped.ledgers / name
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert damage(stopped, capsys) == [(str(path), 0)]


@pytest.mark.parametrize("name", [compaction.FILE_NAME, tombstones.FILE_NAME])
def test_damaged_files_of_garbage_collection_are_named(name: str, stopped: Folder, capsys: Capture) -> None:
    (stopped.ledgers / name).write_bytes(b"no such thing")
    assert damage(stopped, capsys) == [(str(stopped.ledgers / name), 0)]


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"garbage"),
        lambda path: _move(path),
    ],
)
def test_missing_unreadable_and_foreign_cookies_are_named(
    harm: Callable[[Path], None], stopped: Folder, capsys: Capture
) -> None:
    path = stopped.ledgers / "VERSION"
    harm(path)
    assert damage(stopped, capsys) == [(str(path), 0)]


def _move(path: Path) -> None:
    cookie = cookies.decode(path.read_bytes(), str(path))
    path.write_bytes(cookies.encode(replace(cookie, ledger_directories=("/another",))))


def test_wiped_directory_is_named(stopped: Folder, capsys: Capture) -> None:
    shutil.rmtree(stopped.ledgers)
    assert damage(stopped, capsys) == [(str(stopped.ledgers), 0)]


# ---- refusing ----


def test_running_bookie_is_not_checked(stopped: Folder, capsys: Capture) -> None:
    lock = LocalFiles().lock(str(stopped.directory / "ledgers"))
    try:
        assert main(["--check", *stopped.settings], ShutdownSignals()) == 1
    finally:
        lock.release()
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert str(stopped.directory / "ledgers") in output.err


def test_directories_that_do_not_exist_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    folder = Folder(tmp_path)
    assert main(["--check", *folder.settings], ShutdownSignals()) == 1
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1
    assert str(tmp_path / "journal") in output.err
    assert list(tmp_path.iterdir()) == []


def test_command_line_hands_the_check_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, command: ran.append(command))
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    bkspark(["bookie", "--check", "--json", "--set", "bookiePort=0"])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held, "what goes on here answers to signals as before"
    assert ran[0][1:] == ["-m", "bookie_service", "--set", "bookiePort=0", "--json", "--check"]


@pytest.mark.parametrize("name", [".log", "5.idx", "lastMark", ".txn", "lastId", "fencedDeleted"])
@pytest.mark.parametrize("operation", ["open", "read"])
def test_file_that_its_disk_does_not_read_is_damage_and_the_check_goes_on(
    crashed: Folder, name: str, operation: str
) -> None:
    files = GoneFiles()
    (crashed.ledgers / "fencedDeleted").write_bytes(tombstones.encode({7: 1}, 1))
    files.fault = lambda asked, path: asked == operation and path.endswith(name)
    directory = crashed.directory
    report = BookieCheck(files, [str(directory / "journal")], [str(directory / "ledgers")]).run()
    reasons = {each.reason for each in report.damage if each.path.endswith(name)}
    assert "it cannot be read: Input/output error" in reasons
    assert report.cookies == 2
    if name == "5.idx":
        assert report.logged_entries, "other files are checked"


def test_directory_that_its_disk_does_not_list_is_damage_and_the_check_goes_on(crashed: Folder) -> None:
    files = GoneFiles()
    files.fault = lambda asked, path: asked == "names" and path == str(crashed.ledgers)
    directory = crashed.directory
    report = BookieCheck(files, [str(directory / "journal")], [str(directory / "ledgers")]).run()
    assert str(crashed.ledgers) in {each.path for each in report.damage}
    assert report.journal_files


def test_newest_journal_file_that_was_truncated_is_damage(crashed: Folder, capsys: Capture) -> None:
    newest = max(crashed.journals.glob("*.txn"))
    content = newest.read_bytes()
    newest.write_bytes(content[: crashed.marked])
    (found,) = damage(crashed, capsys)
    assert found == (str(newest), crashed.marked)


def test_dump_names_logs_that_are_in_two_directories(stopped: Folder, capsys: Capture) -> None:
    log = next(stopped.ledgers.glob("*.log"))
    other = stopped.directory / "more" / "current"
    other.mkdir(parents=True)
    shutil.copy(log, other / log.name)
    shutil.copy(stopped.ledgers / "VERSION", other / "VERSION")
    directories = f"ledgerDirectories={stopped.ledgers.parent},{other.parent}"
    arguments = ["index", "--set", f"journalDirectories={stopped.journals.parent}", "--set", directories]
    assert dump.main(arguments) == 1
    assert f"is in two ledger directories, {log} and {other / log.name}" in capsys.readouterr().err
