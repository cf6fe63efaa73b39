"""`bkspark dump` and `bkspark bookie --check` over the folder of a DbLedgerStorage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_service.admin.dump import main as dump_main
from bookie_service.admin.shutdown import ShutdownSignals
from bookie_service.formats.key_value_index import block_key, header_key
from bookie_service.process import main as bookie
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.dumps import Capture, check_index, dump, ids, of_kind
from tests.bookie.folders import SMALL, SMALL_PAYLOADS, Folder, add, flip, serve
from tests.bookie.serving import Serving, service_options
from tests.polling import wait_until


@pytest.fixture(scope="module")
def db_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serve(tmp_path_factory.mktemp("db") / "bookie", storage_class=StorageClass.DB)


@pytest.fixture
def db(db_template: Path, tmp_path: Path) -> Folder:
    """The folder of a bookie with DbLedgerStorage that was stopped."""
    folder = Folder.copy(db_template, tmp_path / "bookie")
    folder.settings += ["--set", "ledgerStorageClass=DbLedgerStorage"]
    return folder


def check(folder: Folder, capsys: Capture) -> tuple[int, dict[str, object]]:
    code = bookie(["--check", "--json", *folder.settings], ShutdownSignals())
    return code, json.loads(capsys.readouterr().out)


def remove(folder: Folder, *removed: bytes) -> None:
    """Remove keys from the store."""
    store = LocalFiles().open_key_values(str(folder.ledgers / "positions"), KeyValueOptions())
    store.write([], [(key, key + b"\0") for key in removed])
    store.sync()
    store.close()


# ---- dump ----


def test_dump_shows_headers_and_positions_that_lead_to_the_entries(db: Folder, capsys: Capture) -> None:
    for row in check_index(db, capsys):
        assert (row["file"], row["offset"], row["length"]) == (str(db.ledgers / "positions"), None, None)


def test_dump_by_directory_store_and_configuration_shows_the_same(db: Folder, capsys: Capture) -> None:
    whole = dump(capsys, "index", db.directory)
    assert dump(capsys, "index", db.ledgers / "positions") == whole
    assert dump(capsys, "index", *db.settings) == whole


def test_dump_filters_by_ledger_and_entry(db: Folder, capsys: Capture) -> None:
    _, rows = dump(capsys, "index", "--ledger", SMALL, "--entry", 7, db.directory)
    assert ids(of_kind(rows, "position")) == [(SMALL, 7)]
    _, rows = dump(capsys, "index", "--ledger", 999, db.directory)
    assert not of_kind(rows, "position")


def test_dump_and_check_change_nothing(db: Folder, capsys: Capture) -> None:
    before = db.state()
    assert dump(capsys, "index", db.directory)[0] == 0
    assert check(db, capsys)[0] == 0
    assert db.state() == before


def test_dump_of_a_running_bookie_shows_what_is_durable(tmp_path: Path, capsys: Capture) -> None:
    options = service_options(tmp_path / "bookie", store=StoreOptions(StorageClass.DB), checkpoint_interval_s=0.05)
    with Serving(options) as serving, serving.connect() as peer:
        add(peer, SMALL, 0, SMALL_PAYLOADS)

        def shown() -> list[tuple[int, int]]:
            code, rows = dump(capsys, "index", tmp_path / "bookie")
            assert code == 0
            return ids(of_kind(rows, "position"))

        wait_until(lambda: shown() == [(SMALL, i) for i in range(len(SMALL_PAYLOADS))], "a checkpoint")


def test_dump_says_what_is_damaged(db: Folder, capsys: Capture) -> None:
    table = max((db.ledgers / "positions").glob("*.sst"))
    flip(table, 40)
    code, rows = dump(capsys, "index", db.directory)
    assert code == 1
    assert any(str(db.ledgers / "positions") in row["file"] for row in of_kind(rows, "damage"))


def test_people_get_a_table_without_offsets(db: Folder, capsys: Capture) -> None:
    assert dump_main(["index", str(db.directory), "--ledger", str(SMALL), "--entry", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:5] == ["-", "-", "position", "ok", "ledger"] for line in lines)


# ---- check ----


def test_whole_folder_passes_with_everything_counted(db: Folder, capsys: Capture) -> None:
    code, report = check(db, capsys)
    assert (code, report["ok"], report["damage"]) == (0, True, [])
    counts = {"ledgers": 2, "logged_entries": 35, "positions": 35, "unindexed_entries": 0, "entry_logs": 2}
    assert {name: report[name] for name in counts} == counts


def test_positions_that_are_gone_are_named_by_ledger_and_entry(db: Folder, capsys: Capture) -> None:
    remove(db, block_key(SMALL, 0))
    code, report = check(db, capsys)
    assert code == 1
    named = [(each["file"], each["ledger"], each["entry"]) for each in report["damage"]]
    assert (str(db.ledgers / "positions"), SMALL, 0) in named


def test_entries_of_a_deleted_ledger_are_counted_and_no_damage(db: Folder, capsys: Capture) -> None:
    remove(db, header_key(SMALL), block_key(SMALL, 0))
    code, report = check(db, capsys)
    assert (code, report["unindexed_entries"]) == (0, len(SMALL_PAYLOADS))


def test_damaged_store_is_named(db: Folder, capsys: Capture) -> None:
    table = max((db.ledgers / "positions").glob("*.sst"))
    flip(table, 40)
    code, report = check(db, capsys)
    assert code == 1
    assert any(each["file"] == str(db.ledgers / "positions") for each in report["damage"])


def test_check_with_another_storage_is_refused_in_one_line(db: Folder, capsys: Capture) -> None:
    assert bookie(["--check", *db.settings, "--set", "ledgerStorageClass=SortedLedgerStorage"], ShutdownSignals()) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "written with ledgerStorageClass DbLedgerStorage" in line
