"""What bkspark dump prints, as objects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookie_service.admin.dump import main
from tests.bookie.folders import FENCED, LARGE_PAYLOADS, SMALL, SMALL_PAYLOADS, Folder
from tests.bookie.serving import stored

Row = dict[str, Any]
Capture = pytest.CaptureFixture[str]


def dump(capsys: Capture, *arguments: object) -> tuple[int, list[Row]]:
    """Return the exit code and the objects printed."""
    code = main([*map(str, arguments), "--json"])
    output = capsys.readouterr()
    assert output.err == ""
    return code, [json.loads(line) for line in output.out.splitlines()]


def of_kind(rows: list[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def ids(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["ledger"], row["entry"]) for row in rows]


EVERY_ENTRY = sorted([(SMALL, i) for i in range(25)] + [(FENCED, i) for i in range(10)])


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    return (SMALL_PAYLOADS if ledger_id == SMALL else LARGE_PAYLOADS)[entry_id]


def check_index(folder: Folder, capsys: Capture) -> list[Row]:
    """Check that the index has all headers, and positions that lead to the entries; return the positions."""
    code, rows = dump(capsys, "index", folder.directory)
    assert code == 0
    assert {row["ledger"]: row["fenced"] for row in of_kind(rows, "index")} == {SMALL: False, FENCED: True}
    positions = of_kind(rows, "position")
    assert sorted(ids(positions)) == EVERY_ENTRY
    for row in positions:
        log = folder.ledgers / f"{row['log']:x}.log"
        entry = stored(row["ledger"], row["entry"], payload_of(row["ledger"], row["entry"]))
        assert log.read_bytes()[row["log_offset"] + 4 :].startswith(entry)
    return positions
