"""What `bkspark dump` shows of the files of a bookie, whole, damaged, or being written."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bkspark.cli.__main__ import main as bkspark
from bkspark.entries import EntryBatch
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest
from bookie_service.admin.dump import main
from bookie_service.formats import compaction, tombstones
from bookie_service.formats.compaction import Intent
from bookie_service.formats.index import LAYOUT
from tests.bookie.dumps import EVERY_ENTRY, Capture, check_index, dump, ids, of_kind, payload_of
from tests.bookie.folders import FENCED, SMALL, SMALL_PAYLOADS, Folder, add, cut, flip, serve
from tests.bookie.serving import KEY, Peer, Serving, service_options, stored

_LOG_HEADER, _SMALL_ITEM = 1024, 4 + len(stored(SMALL, 0, SMALL_PAYLOADS[0]))


# ---- whole files ----


def test_payloads_are_shown_on_request_of_entry_logs_and_journals_alone(stopped: Folder, capsys: Capture) -> None:
    for kind in ("entry-log", "journal"):
        _, rows = dump(capsys, kind, "--payloads", "hex", stopped.directory)
        shown = {(row["ledger"], row["entry"]): base64.b64decode(row["value"]) for row in of_kind(rows, "entry")}
        assert shown == {place: payload_of(*place) for place in EVERY_ENTRY}
        assert not any("value" in row for row in dump(capsys, kind, stopped.directory)[1])
        for form, line in (("string", "  " + SMALL_PAYLOADS[3].decode()), ("hex", "  " + SMALL_PAYLOADS[3].hex())):
            assert main([kind, "--payloads", form, "--ledger", str(SMALL), "--entry", "3", str(stopped.directory)]) == 0
            assert line in capsys.readouterr().out.splitlines()
    assert main(["marks", "--payloads", "hex", str(stopped.directory)]) == 2
    assert "have no payloads" in capsys.readouterr().err


def test_garbage_shows_the_compaction_under_way_and_fenced_ledgers_that_are_deleted(
    stopped: Folder, capsys: Capture
) -> None:
    assert dump(capsys, "garbage", stopped.directory)[1][-1]["files"] == 0, "there is none, and nothing is wrong"
    (stopped.ledgers / compaction.FILE_NAME).write_bytes(compaction.encode(Intent(7, 3)))
    (stopped.ledgers / tombstones.FILE_NAME).write_bytes(tombstones.encode({5: 100, 9: 200}))
    code, rows = dump(capsys, "garbage", stopped.directory)
    assert code == 0
    assert [(row["new_log"], row["old_log"]) for row in of_kind(rows, "compaction")] == [(7, 3)]
    found = [(row["ledger"], row["dropped_at_s"], row["offset"]) for row in of_kind(rows, "fenced-deleted")]
    assert found == [(5, 100, 20), (9, 200, 36)]
    _, rows = dump(capsys, "garbage", "--ledger", 9, stopped.ledgers)
    assert [row["ledger"] for row in of_kind(rows, "fenced-deleted")] == [9]


@pytest.mark.parametrize("name", [compaction.FILE_NAME, tombstones.FILE_NAME])
def test_damaged_files_of_garbage_collection_are_named(name: str, stopped: Folder, capsys: Capture) -> None:
    encoded = {compaction.FILE_NAME: compaction.encode(Intent(7, 3)), tombstones.FILE_NAME: tombstones.encode({5: 100})}
    path = stopped.ledgers / name
    path.write_bytes(encoded[name])
    flip(path, 9)
    code, rows = dump(capsys, "garbage", path)
    assert code == 1
    assert [row["file"] for row in of_kind(rows, "damage")] == [str(path)]


@pytest.mark.parametrize("kind", ["journal", "entry-log"])
def test_every_entry_is_shown_where_it_lies(kind: str, stopped: Folder, capsys: Capture) -> None:
    code, rows = dump(capsys, kind, stopped.directory)
    entries = of_kind(rows, "entry")
    assert code == 0
    assert sorted(ids(entries)) == EVERY_ENTRY
    assert all(row["checksum_ok"] for row in entries)
    for row in entries:
        data = Path(row["file"]).read_bytes()[row["offset"] :][: row["length"]]
        assert data[4:] == stored(row["ledger"], row["entry"], payload_of(row["ledger"], row["entry"]))
    assert rows[-1] == {
        "kind": "summary", "files": 2, "entries": 35, "unverified": 0, "damaged": 0, "incomplete": 0,
    }  # fmt: skip


def test_index_shows_headers_and_positions_that_lead_to_the_entries(stopped: Folder, capsys: Capture) -> None:
    check_index(stopped, capsys)


def test_marks_show_where_replay_begins(stopped: Folder, capsys: Capture) -> None:
    code, rows = dump(capsys, "marks", stopped.directory)
    (mark,) = of_kind(rows, "mark")
    assert code == 0
    assert (mark["journal"], mark["journal_offset"]) == (2, stopped.marked)
    _, journal = dump(capsys, "journal", stopped.journal(2))
    assert {row["record"] for row in of_kind(journal, "record") if row["offset"] >= stopped.marked} <= {"padding"}
    assert [row["log"] for row in of_kind(rows, "last-id")] == [2]


def test_journal_shows_keys_without_the_secret_and_fences(stopped: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, "journal", stopped.directory)
    assert {row["ledger"] for row in of_kind(rows, "ledger-key")} == {SMALL, FENCED}
    assert [row["ledger"] for row in of_kind(rows, "fence")] == [FENCED]
    assert KEY.hex() not in json.dumps(rows)


@pytest.mark.parametrize("kind", ["journal", "entry-log", "index"])
def test_filters_leave_only_the_entry_asked_for(kind: str, stopped: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, kind, "--ledger", SMALL, "--entry", 7, stopped.directory)
    shown = of_kind(rows, "position" if kind == "index" else "entry")
    assert ids(shown) == [(SMALL, 7)]
    assert not of_kind(rows, "record") + of_kind(rows, "fence")


def test_a_file_a_directory_and_a_configuration_name_the_same_files(stopped: Folder, capsys: Capture) -> None:
    whole = dump(capsys, "index", stopped.directory)
    assert dump(capsys, "index", stopped.ledgers) == whole
    assert dump(capsys, "index", *stopped.settings) == whole
    _, rows = dump(capsys, "index", stopped.small_index)
    assert {row["ledger"] for row in of_kind(rows, "position")} == {SMALL}


@pytest.mark.parametrize("kind", ["journal", "entry-log", "index", "marks"])
def test_nothing_is_changed(kind: str, crashed: Folder, capsys: Capture) -> None:
    before = crashed.state()
    assert dump(capsys, kind, crashed.directory)[0] == 0
    assert crashed.state() == before


def test_people_get_a_table(stopped: Folder, capsys: Capture) -> None:
    assert main(["entry-log", str(stopped.directory), "--ledger", str(SMALL), "--entry", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{stopped.ledgers / '1.log'}:"
    assert any(line.split()[2:] == ["entry", "ok", "ledger", "5", "entry", "3"] for line in lines)
    assert lines[-1] == "files: 2, entries: 35, damaged: 0, incomplete: 0"


# ---- damage ----


def test_damaged_record_is_named_and_later_records_are_shown(stopped: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, "journal", stopped.journal(1))
    record = next(row for row in of_kind(rows, "record") if row["record"] == "entries")
    flip(stopped.journal(1), record["offset"] + 100)
    code, rows = dump(capsys, "journal", stopped.journal(1))
    (damage,) = of_kind(rows, "damage")
    assert code == 1
    assert (damage["file"], damage["offset"], damage["length"]) == (
        str(stopped.journal(1)), record["offset"], record["length"],
    )  # fmt: skip
    assert {ledger for ledger, _ in ids(of_kind(rows, "entry"))} == {FENCED}


def test_damaged_record_header_is_named_and_later_records_are_found(stopped: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, "journal", stopped.journal(1))
    first = of_kind(rows, "record")[0]
    flip(stopped.journal(1), first["offset"] + 9)
    code, rows = dump(capsys, "journal", stopped.journal(1))
    assert code == 1
    assert [(row["offset"], row["length"]) for row in of_kind(rows, "damage")] == [(first["offset"], first["length"])]
    assert len(of_kind(rows, "entry")) == 30


def test_last_record_is_damaged_and_not_torn_when_the_mark_is_after_it(stopped: Folder, capsys: Capture) -> None:
    flip(stopped.journal(2), stopped.marked - 1)
    code, rows = dump(capsys, "journal", stopped.journal(2))
    assert code == 1
    assert len(of_kind(rows, "damage")) == 1
    assert not of_kind(rows, "incomplete")


def test_truncated_journal_is_named_with_where_it_ends(stopped: Folder, capsys: Capture) -> None:
    cut(stopped.journal(1), 600)
    code, rows = dump(capsys, "journal", stopped.journals)
    assert code == 1
    assert (str(stopped.journal(1)), 600) in [(row["file"], row["offset"]) for row in of_kind(rows, "damage")]


@pytest.mark.parametrize("byte", [0, 1, 2, 3, 8, 11, 12, 19, 20, 35, 36, 39, 40, 48])
def test_any_flipped_byte_of_an_entry_is_found_and_the_others_are_shown(
    byte: int, stopped: Folder, capsys: Capture
) -> None:
    path, item = stopped.ledgers / "1.log", _LOG_HEADER + 4 * _SMALL_ITEM
    flip(path, item + byte)
    code, rows = dump(capsys, "entry-log", path)
    assert code == 1
    assert (str(path), item) in [(row["file"], row["offset"]) for row in of_kind(rows, "damage")]
    whole = [row for row in of_kind(rows, "entry") if row["checksum_ok"]]
    assert sorted(ids(whole)) == [each for each in EVERY_ENTRY if each[0] == FENCED or (each[1] < 20 and each[1] != 4)]


def test_damaged_log_header_is_named(stopped: Folder, capsys: Capture) -> None:
    path = stopped.ledgers / "1.log"
    flip(path, 15)
    code, rows = dump(capsys, "entry-log", path)
    assert code == 1
    assert (of_kind(rows, "damage")[0]["file"], of_kind(rows, "damage")[0]["offset"]) == (str(path), 0)
    assert len(of_kind(rows, "entry")) == 30


def test_truncated_entry_log_is_named_and_the_index_names_each_lost_entry(stopped: Folder, capsys: Capture) -> None:
    path = stopped.ledgers / "2.log"
    last = _LOG_HEADER + 4 * (_SMALL_ITEM + 1)
    cut(path, last + 30)
    _, rows = dump(capsys, "entry-log", path)
    assert (of_kind(rows, "damage") + of_kind(rows, "incomplete"))[0]["offset"] == last
    assert len(of_kind(rows, "entry")) == 4
    code, rows = dump(capsys, "index", stopped.small_index)
    assert code == 1
    (damage,) = of_kind(rows, "damage")
    assert (damage["file"], damage["offset"], damage["entry"]) == (str(stopped.small_index), LAYOUT.position_at(24), 24)


@pytest.mark.parametrize(("offset", "entry_id"), [(0, None), (40, None), (4096, None), (8192, 0), (8199, 0), (8236, 5)])
def test_flipped_byte_of_an_index_is_named(offset: int, entry_id: int | None, stopped: Folder, capsys: Capture) -> None:
    flip(stopped.small_index, offset)
    code, rows = dump(capsys, "index", stopped.directory)
    (damage,) = of_kind(rows, "damage")
    assert code == 1
    begin = offset // 4096 * 4096 if entry_id is None else LAYOUT.position_at(entry_id)
    assert (damage["file"], damage["offset"], damage["entry"]) == (str(stopped.small_index), begin, entry_id)


def test_flipped_byte_of_the_ledgers_map_is_named(stopped: Folder, capsys: Capture) -> None:
    path = stopped.ledgers / "1.log"
    _, rows = dump(capsys, "entry-log", path)
    (header,) = of_kind(rows, "entry-log")
    assert [row["offset"] for row in of_kind(rows, "ledgers-map")] == [header["map_offset"]]
    flip(path, path.stat().st_size - 1)
    code, rows = dump(capsys, "entry-log", path)
    assert code == 1
    assert [row["offset"] for row in of_kind(rows, "damage")] == [header["map_offset"]]
    assert len(of_kind(rows, "entry")) == 30


@pytest.mark.parametrize("name", ["lastMark", "lastId"])
def test_damaged_mark_and_last_id_are_named(name: str, stopped: Folder, capsys: Capture) -> None:
    (stopped.ledgers / name).write_bytes(b"garbage")
    code, rows = dump(capsys, "marks", stopped.directory)
    (damage,) = of_kind(rows, "damage")
    assert code == 1
    assert (damage["file"], damage["offset"]) == (str(stopped.ledgers / name), 0)


def test_truncated_index_and_mark_are_named(stopped: Folder, capsys: Capture) -> None:
    cut(stopped.small_index, LAYOUT.position_at(10) + 3)
    code, rows = dump(capsys, "index", stopped.small_index)
    assert code == 1
    assert [row["offset"] for row in of_kind(rows, "damage")] == [LAYOUT.position_at(10)]
    cut(stopped.ledgers / "lastMark", 20)
    assert dump(capsys, "marks", stopped.ledgers)[0] == 1


# ---- digests ----


def test_macs_are_checked_with_the_password_and_dummy_digests_are_not(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        for ledger_id, digest in enumerate((EntryDigest(DigestType.MAC, b"pw"), EntryDigest(DigestType.DUMMY, b""))):
            batch = EntryBatch.of([b"one", b"two"], ledger_id, 0)
            peer.send(v2.encode_adds(batch, -1, 0, digest, KEY, 0).buffer)
            assert [reply.status for reply in peer.replies(2)] == [0, 0]
    monkeypatch.delenv("BKSPARK_PASSWORD", raising=False)
    assert dump(capsys, "entry-log", tmp_path)[1][-1]["unverified"] == 4
    monkeypatch.setenv("BKSPARK_PASSWORD", "pw")
    _, rows = dump(capsys, "entry-log", tmp_path)
    assert [row["checksum_ok"] for row in of_kind(rows, "entry")] == [True, True, None, None]


# ---- running bookies ----


def test_half_a_record_at_the_end_is_incomplete_and_not_damage(crashed: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, "journal", crashed.journal(2))
    last = [row for row in of_kind(rows, "record") if row["record"] != "padding"][-1]
    data = bytearray(crashed.journal(2).read_bytes())
    data[last["offset"] + last["length"] - 20 : last["offset"] + last["length"]] = bytes(20)
    crashed.journal(2).write_bytes(data)
    code, rows = dump(capsys, "journal", crashed.journal(2))
    assert code == 0
    assert [row["offset"] for row in of_kind(rows, "incomplete")] == [last["offset"]]


def test_running_bookie_can_be_read_under_load(tmp_path: Path, capsys: Capture) -> None:
    options = service_options(serve(tmp_path / "bookie"), checkpoint_interval_s=0.02)
    with Serving(options) as serving, serving.connect() as peer:
        stop = threading.Event()
        acknowledged = [0]
        thread = threading.Thread(target=_add_until, args=(stop, peer, acknowledged))
        thread.start()
        try:
            for _ in range(5):
                promised = acknowledged[0]
                for kind in ("journal", "entry-log", "index", "marks"):
                    code, rows = dump(capsys, kind, tmp_path / "bookie")
                    assert code == 0, of_kind(rows, "damage")
                    if kind == "journal":
                        assert {(7, i) for i in range(promised)} <= set(ids(of_kind(rows, "entry")))
        finally:
            stop.set()
            thread.join()
    assert acknowledged[0] > 0


def _add_until(stop: threading.Event, peer: Peer, acknowledged: list[int]) -> None:
    # Without a pause the files grow, and take longer to dump, as fast as the machine writes.
    while not stop.wait(0.001):
        add(peer, 7, acknowledged[0], [b"x" * 200] * 10)
        acknowledged[0] += 10


def test_index_of_terabytes_of_holes_is_read_at_once(tmp_path: Path, capsys: Capture) -> None:
    with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
        add(peer, SMALL, 0, [b"first"])
        add(peer, SMALL, 1 << 39, [b"far"])
    code, rows = dump(capsys, "index", tmp_path)
    assert code == 0
    assert [row["entry"] for row in of_kind(rows, "position")] == [0, 1 << 39]


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["journal"], ["--config"]),
        (["journal", "/nowhere/at-all"], ["/nowhere/at-all"]),
        (["tape", "/"], ["tape"]),
        (["index", "--ledger", "five", "/"], ["five"]),
        (["index", "/dev/null"], ["/dev/null", "index"]),
        (["journal", "/", "--set", "bookiePort=1"], ["not both"]),
        (["journal", "--set", "bookiPort=1"], ["bookiPort", "bookiePort"]),
        (["marks", "--set", "ledgerDirectories=/nowhere/at-all"], ["/nowhere/at-all"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], names: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert all(name in output.err for name in names)


def test_ledger_without_an_index_is_said(stopped: Folder, capsys: Capture) -> None:
    assert main(["index", "--ledger", "99", str(stopped.directory)]) == 2
    assert "ledger 99" in capsys.readouterr().err


def test_command_line_runs_it_and_hands_on_the_exit_code(stopped: Folder) -> None:
    flip(stopped.ledgers / "lastMark", 9)
    command = [sys.executable, "-m", "bkspark.cli", "dump", "marks", "--json", str(stopped.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["damaged"] == 1


@pytest.mark.parametrize("kind", ["journal", "entry-log", "index", "marks", "garbage"])
def test_help_of_each_kind_shows_how_to_call_it(kind: str, capsys: Capture) -> None:
    assert bkspark(["dump", kind, "--help"]) == 0
    assert f"bkspark dump {kind} --ledger 17 --entry 4 DIR" in capsys.readouterr().out
