"""Files whose checksums are right and whose contents cannot be: what no bookie writes is never taken for data.

A checksum shows that bytes are as they were written, not that they were written for this file.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c

from bookie_service.formats import (
    compaction,
    entry_log,
    index,
    index_files,
    journal,
    key_value_index,
    ledger_headers,
    limbo,
    marks,
    tombstones,
)
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.journal import FileHeader, RecordKind
from bookie_service.formats.marks import JournalPosition

KEY = bytes(range(20))


def sealed(data: bytes) -> bytes:
    """Return data with their checksum after them."""
    return data + struct.pack(">I", crc32c(data))


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """Return a file that ends in its checksum with other bytes at an offset, and the checksum of those."""
    return sealed(data[:at] + new + data[at + len(new) : -4])


def unsealed_record(body: bytes) -> bytes:
    """Return a record that begins with its checksum."""
    return struct.pack(">I", crc32c(body)) + body


# ---- the journal ----


def test_a_journal_file_under_the_name_of_another_has_no_header() -> None:
    head = journal.encode_file_header(FileHeader(7, 6, 1000))
    assert journal.decode_file_header(head, 7) == FileHeader(7, 6, 1000)
    assert journal.decode_file_header(head, 8) is None


@pytest.mark.parametrize(("file_id", "offset"), [(7, 1024), (8, 512)])
def test_a_record_of_another_file_or_place_is_not_found(file_id: int, offset: int) -> None:
    head = journal.encode_record_header(RecordKind.FENCE, 8, 1, file_id=7, offset=512, synced=0, body_crc=0)
    assert journal.decode_record_header(head, 0, file_id=7, offset=512) is not None
    assert journal.decode_record_header(head, 0, file_id=file_id, offset=offset) is None


def test_a_record_of_explicit_lacs_holds_nothing_else() -> None:
    body = journal.encode_lacs([(5, b"x" * 20), (6, b"y" * 16)])
    assert journal.decode_lacs(body, 2) == [(5, b"x" * 20), (6, b"y" * 16)]
    for wrong, count in ((body, 1), (body + b"\0", 2), (body[:-1], 2)):
        with pytest.raises(ValueError, match="does not hold"):
            journal.decode_lacs(wrong, count)


def test_no_record_names_a_negative_ledger() -> None:
    with pytest.raises(ValueError, match="ledger -2"):
        journal.decode_fences(journal.encode_fences([5, -2]), 2)
    with pytest.raises(ValueError, match="ledger -2"):
        journal.decode_keys(struct.pack(">q", -2) + KEY, 1)


# ---- one value in one file ----


def test_an_intent_of_a_compaction_and_a_mark_are_not_mistaken_for_each_other() -> None:
    intent, mark = compaction.encode(compaction.Intent(9, 4)), marks.encode_mark(JournalPosition(9, 4))
    assert (compaction.decode(intent), marks.decode_mark(mark)) == (compaction.Intent(9, 4), JournalPosition(9, 4))
    assert compaction.decode(mark) is None
    assert marks.decode_mark(intent) is None


def test_a_number_of_commits_has_the_magic_of_its_file() -> None:
    commit = key_value_index.encode_commit(6)
    assert key_value_index.decode_commit(commit) == 6
    assert key_value_index.decode_commit(resealed(commit, 0, b"BKSM")) is None


def test_sixteen_bytes_are_a_mark_of_apaches_unless_they_begin_as_one_of_ours() -> None:
    assert marks.is_apaches(struct.pack(">qq", 1_700_000_000_000, 512))
    assert not marks.is_apaches(marks.encode_mark(JournalPosition(9, 4))[:16])
    assert not marks.is_apaches(bytes(15))


# ---- lists ----


@pytest.mark.parametrize("more", [bytes(8), bytes(3)])
def test_a_list_of_ledgers_in_limbo_has_as_many_as_it_says(more: bytes) -> None:
    whole = limbo.encode_limbo(np.array([4, 9]), 3)
    ledgers, generation = limbo.decode_limbo(whole)
    assert (ledgers.tolist(), generation) == ([4, 9], 3)
    for wrong in (sealed(whole[:-4] + more), sealed(whole[: -4 - len(more)])):
        with pytest.raises(ValueError, match="ledgers and has"):
            limbo.decode_limbo(wrong)


@pytest.mark.parametrize("more", [bytes(16), bytes(3)])
def test_a_list_of_dropped_ledgers_has_as_many_as_it_says(more: bytes) -> None:
    whole = tombstones.encode({4: 100, 9: 200}, 3)
    assert tombstones.decode(whole) == {4: 100, 9: 200}
    assert tombstones.decode(sealed(whole[:-4] + more)) is None
    assert tombstones.decode(sealed(whole[: -4 - len(more)])) is None


@pytest.mark.parametrize("marker", [b"", b"journal complete", b"journal complete\n\n", b"journal"])
def test_only_the_whole_line_says_that_the_journal_was_complete(marker: bytes) -> None:
    assert limbo.decode_dirty(limbo.encode_dirty(journal_is_complete=True))
    assert not limbo.decode_dirty(limbo.encode_dirty(journal_is_complete=False))
    assert not limbo.decode_dirty(marker)


def test_a_record_of_index_files_has_at_most_as_many_rows_as_the_format_allows() -> None:
    most = index_files.ROWS_PER_RECORD_MAX
    rows = np.ones(most + 1, np.int64)
    whole = index_files.encode_head(3) + index_files.encode_rows(np.arange(most + 1), rows)
    assert len(index_files.decode(whole)[0]) == most + 1, "two records"
    pairs = np.column_stack((np.arange(most + 1), rows)).astype(">i8").tobytes()
    too_long = index_files.encode_head(3) + unsealed_record(struct.pack(">i", most + 1) + pairs)
    ledgers, _, end = index_files.decode(too_long)
    assert (len(ledgers), end) == (0, len(index_files.encode_head(3)))


def test_a_file_that_may_be_gone_has_no_place() -> None:
    assert index_files.with_place(0, 3) == 0
    assert index_files.places_of(np.array([index_files.with_place(600, 3), 600])).tolist() == [3, -1]


def test_a_row_about_headers_goes_into_a_file_that_earlier_versions_refuse() -> None:
    """An earlier version, which does not know the headers, would deny the fences in them."""
    old, new = index_files.version_of(names_headers=False), index_files.version_of(names_headers=True)
    assert index_files.may_append(old, names_headers=False)
    assert not index_files.may_append(old, names_headers=True)
    assert index_files.may_append(new, names_headers=False)
    assert index_files.may_append(new, names_headers=True)
    assert not index_files.may_append(1, names_headers=False)


def header_record(ledger_id: int, packet_bytes: int, packets: bytes) -> bytes:
    row = np.zeros(1, ledger_headers.ROW)
    row["ledger_id"], row["packet_bytes"] = ledger_id, packet_bytes
    return unsealed_record(struct.pack(">ii", 1, len(packets)) + row.tobytes() + packets)


@pytest.mark.parametrize(
    ("ledger_id", "packet_bytes", "packets"),
    [(-1, 0, b""), (5, 16, bytes(17)), (5, 0, bytes(16)), (5, 15, bytes(15)), (5, 129, bytes(129))],
)
def test_a_row_of_headers_names_a_ledger_and_the_bytes_of_its_lac(
    ledger_id: int, packet_bytes: int, packets: bytes
) -> None:
    head = ledger_headers.encode_head(1)
    assert len(ledger_headers.decode(head + header_record(5, 16, bytes(16)))[0]) == 1
    rows, end = ledger_headers.decode(head + header_record(ledger_id, packet_bytes, packets))
    assert (len(rows), end) == (0, len(head))


# ---- headers and names ----


def test_two_headers_of_a_ledger_say_together_what_either_says() -> None:
    first = LedgerHeader(5, 3, False, index.UNKNOWN_KEY, struct.pack(">qq", 5, 9))
    second = LedgerHeader(5, 2, True, KEY, struct.pack(">qq", 5, 8))
    for one, other in ((first, second), (second, first)):
        assert index.merged(one, other) == LedgerHeader(5, 3, True, KEY, struct.pack(">qq", 5, 9))
    assert index.merged(LedgerHeader(5, 0, False, KEY), LedgerHeader(5, 0, False, KEY)).explicit_lac == b""


@pytest.mark.parametrize(("number", "is_name"), [(0, True), ((1 << 63) - 1, True), (1 << 63, False)])
def test_an_index_file_is_named_after_an_id_that_a_ledger_can_have(number: int, is_name: bool) -> None:
    assert index.parse_file_name(f"{number:x}.idx") == (number if is_name else None)


@pytest.mark.parametrize(
    ("number", "is_name"), [(0, False), (1, True), (entry_log.LOG_ID_MAX, True), (entry_log.LOG_ID_MAX + 1, False)]
)
def test_an_entry_log_is_named_after_an_id_that_fits_into_a_position(number: int, is_name: bool) -> None:
    assert entry_log.parse_file_name(f"{number:x}.log") == (number if is_name else None)


@pytest.mark.parametrize(("number", "is_name"), [(0, False), (1, True), ((1 << 63) - 1, True), (1 << 63, False)])
def test_a_journal_file_is_named_after_a_positive_id(number: int, is_name: bool) -> None:
    assert journal.parse_file_name(f"{number:016x}.txn") == (number if is_name else None)
