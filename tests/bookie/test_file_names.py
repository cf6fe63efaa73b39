"""Names of a bookie's files: each is parsed as it is written, and no other name means the same file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_service.formats import entry_log, index, journal

LAST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("name_of", "parse", "ids"),
    [
        (entry_log.file_name, entry_log.parse_file_name, (1, 10, 255, entry_log.LOG_ID_MAX)),
        (journal.file_name, journal.parse_file_name, (1, 10, 1 << 40, LAST)),
        (lambda ledger_id: index.relative_path(ledger_id)[2], index.parse_file_name, (0, 1, 255, 1 << 40, LAST)),
    ],
)
def test_a_name_is_parsed_as_it_is_written(
    name_of: Callable[[int], str], parse: Callable[[str], int | None], ids: tuple[int, ...]
) -> None:
    assert [parse(name_of(each)) for each in ids] == list(ids)


@pytest.mark.parametrize("stem", ["", "0x5", "+5", "-5", " 5", "5 ", "1_0", "005", "A", "\u0665", "g", "f" * 16, "5.5"])
def test_other_names_are_not_a_file_of_ours(stem: str) -> None:
    assert entry_log.parse_file_name(f"{stem}.log") is None
    assert index.parse_file_name(f"{stem}.idx") is None
    assert journal.parse_file_name(f"{stem}.txn") is None
    assert journal.parse_file_name(f"{stem.rjust(16, '0')[:16]}.txn") in (None, 5, 10)


@pytest.mark.parametrize("name", ["5.log.tmp", "5", "log", ".log", "5.LOG", "80000000.log", "0.log"])
def test_names_that_are_nearly_those_of_entry_logs(name: str) -> None:
    assert entry_log.parse_file_name(name) is None
