"""The benchmark of several ledger directories runs and prints its table. No figure is judged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import ledger_directories
from benchmarks.ledger_directories import ModelledDisk, ModelledFiles
from bookie_service.storage.io.key_values import KeyValueOptions


@pytest.mark.parametrize("words", [[], ["--plain"], ["--storage", "DbLedgerStorage", "--entry-bytes", "1024"]])
def test_table_has_a_line_for_each_number_of_directories(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ledger_directories.main(["--rounds", "1", "--mib", "4", "--sync-ms", "0", "--mib-per-s", "10000", *words])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["1", "2", "4"]
    assert lines[2].split()[5] == "1.00"


def test_stall_has_a_line_for_the_first_and_the_last_directory(capsys: pytest.CaptureFixture[str]) -> None:
    ledger_directories.main(["--rounds", "1", "--sync-ms", "0", "--mib-per-s", "10000", "--stall", "0.2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1 of 4", "4 of 4"]


def test_modelled_disk_takes_the_time_of_what_was_written_since_the_last_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    (tmp_path / "disk").mkdir()
    files = ModelledFiles({f"{tmp_path}/disk/": ModelledDisk(0.5, 1000)})
    for path in (tmp_path / "disk" / "file", tmp_path / "other"):
        file = files.create(str(path))
        file.write([b"x" * 250, b"y" * 250], 0)
        file.sync_data()
        file.sync_data()
        file.close()
    files.sync_directory(f"{tmp_path}/disk/")
    assert waited == [1.0, 0.5, 0.5]


def test_modelled_disk_takes_the_time_of_a_key_value_store_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    files = ModelledFiles({f"{tmp_path}/disk/": ModelledDisk(0.5, 1000)})
    for name in ("disk", "other"):
        (tmp_path / name / "store").mkdir(parents=True)
        store = files.open_key_values(f"{tmp_path}/{name}/store", KeyValueOptions())
        store.write([(b"k" * 50, b"v" * 450)])
        store.sync()
        store.close()
    assert waited == [1.0, 0.5]
