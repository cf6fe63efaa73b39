"""Histories made by hand: what a correct cluster may show; what it may not, with the words of the judge's complaint."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.histories.recording import Operation, Recorder, value_of

LEDGER = 7
LOG = "clicks"


class Script:
    """A history of one ledger and one log, in which each call and each answer is a millisecond after the one before."""

    def __init__(self, path: Path) -> None:
        ticks = itertools.count(1_000_000, 1_000_000)
        self._recorder = Recorder(path, {"script": True}, lambda: next(ticks))

    def close(self) -> None:
        self._recorder.close()

    # ---- the ledger ----

    def appending(self, first: int, count: int = 1, by: str = "owner", text: str = "entry") -> Operation:
        """Begin to append; what is appended depends on the ids."""
        return self._of_ledger("append", by, first=first, values=values(range(first, first + count), text))

    def append(self, first: int, count: int = 1) -> None:
        self.appending(first, count).ok()

    def relaxed_append(self, first: int, count: int = 1) -> None:
        """Append to a ledger of relaxed durability."""
        entries = values(range(first, first + count), "entry")
        self._of_ledger("append", "owner", first=first, values=entries, relaxed=True).ok()

    def syncing(self) -> Operation:
        return self._of_ledger("sync", "owner")

    def sync(self, last_entry: int) -> None:
        self.syncing().ok(last_entry=last_entry)

    def read(self, ids: Iterable[int], first: int = 0, by: str = "reader", text: str = "entry") -> None:
        """Read the entries of these ids, as if they had the ids from `first` on."""
        self._of_ledger("read", by, first=first).ok(values=values(ids, text))

    def deny(self, entry_id: int) -> None:
        self._of_ledger("read", "reader", first=entry_id).denied(entry=entry_id)

    def lac(self, lac: int, by: str = "reader") -> None:
        self._of_ledger("lac", by).ok(lac=lac)

    def learn_end(self, last_entry: int, by: str = "reader") -> None:
        self._of_ledger("end", by).ok(**ended(last_entry))

    def ending(self, by: str = "recoverer") -> Operation:
        return self._of_ledger("close" if by == "owner" else "recover", by)

    def end(self, last_entry: int, by: str = "recoverer", length: int | None = None) -> None:
        self.ending(by).ok(**ended(last_entry, length))

    def _of_ledger(self, op: str, client: str, **facts: object) -> Operation:
        return self._recorder.begin(op, client, ledger=LEDGER, **facts)

    # ---- the log ----

    def opening(self, writer: str) -> Operation:
        return self._of_log("open", writer, writer=writer)

    def open_log(self, writer: str) -> None:
        self.opening(writer).ok()

    def log_appending(self, writer: str, first: int, count: int = 1) -> Operation:
        numbers = range(first, first + count)
        return self._of_log("append", writer, writer=writer, first=first, values=values(numbers, writer))

    def log_append(self, writer: str, first: int, count: int, at: list[int]) -> None:
        self.log_appending(writer, first, count).ok(at=at)

    def log_reading(self) -> Operation:
        return self._of_log("read", "reader")

    def log_read(self, *runs: tuple[list[int], list[str]], start: list[int] | None = None) -> None:
        asked = {} if start is None else {"start": start}
        operation = self._of_log("read", "reader", **asked)
        operation.ok(runs=[{"from": place, "values": found} for place, found in runs])

    def truncating(self, at: list[int]) -> Operation:
        return self._of_log("truncate", "operator", at=at)

    def close_log(self, writer: str) -> None:
        self._of_log("close", writer, writer=writer).ok()

    def recover_log(self) -> None:
        self._of_log("recover", "operator").ok()

    def _of_log(self, op: str, client: str, **facts: object) -> Operation:
        return self._recorder.begin(op, client, log=LOG, **facts)


def values(ids: Iterable[int], text: str) -> list[str]:
    return [value_of(_payload(entry_id, text)) for entry_id in ids]


def _payload(entry_id: int, text: str) -> bytes:
    return f"{text} {entry_id}".encode()


def ended(last_entry: int, length: int | None = None) -> dict[str, int]:
    """Return an observation of a ledger's end; the length is that of the entries unless another is given."""
    if length is None:
        length = sum(len(_payload(entry_id, "entry")) for entry_id in range(last_entry + 1))
    return {"last_entry": last_entry, "length": length}


# ---- what a correct cluster may show ----


def quiet_ledger(h: Script) -> None:
    h.append(0, 3)
    h.lac(1)
    h.read(range(2))
    h.append(3, 2)
    h.end(4, by="owner")
    h.end(4)
    h.read(range(5))


def unknown_append_recovered_in_part(h: Script) -> None:
    h.append(0, 2)
    h.appending(2, 5).unknown()
    h.end(3)
    h.read(range(4))
    h.deny(4)


def unknown_append_lost(h: Script) -> None:
    h.append(0, 2)
    h.appending(2, 5).unknown()
    h.end(1)
    h.deny(2)


def unknown_close_then_recovery(h: Script) -> None:
    h.append(0, 2)
    h.ending("owner").unknown()
    h.end(1)


def entry_read_before_its_acknowledgement(h: Script) -> None:
    pending = h.appending(0, 2)
    h.lac(1)
    h.read(range(2))
    pending.ok()
    h.end(1)


def recovery_beside_an_append(h: Script) -> None:
    h.append(0, 2)
    pending, recovering = h.appending(2, 3), h.ending()
    pending.ok()
    recovering.ok(**ended(4))


def readers_with_different_lacs(h: Script) -> None:
    h.append(0, 10)
    h.lac(8, by="reader 1")
    h.lac(3, by="reader 2")
    h.lac(8, by="reader 1")


def readers_that_learn_the_end_one_after_the_other(h: Script) -> None:
    h.append(0, 10)
    h.lac(8, by="reader 1")
    h.end(9, by="owner")
    h.learn_end(9, by="reader 1")
    h.lac(3, by="reader 2")
    h.learn_end(9, by="reader 2")


def failed_append_is_not_there(h: Script) -> None:
    h.append(0, 2)
    h.end(1, by="owner")
    h.appending(2).failed()
    h.end(1)


def open_ledger_with_an_append_under_way(h: Script) -> None:
    h.append(0, 2)
    h.appending(2, 3).unknown()
    h.lac(3)
    h.read(range(4))
    h.deny(5)


def many_appends_of_unknown_outcome(h: Script) -> None:
    pending = [h.appending(10 * number, 10) for number in range(100)]
    h.lac(311)
    h.read(range(312))
    for append in pending:
        append.unknown()
    h.end(543)
    h.read(range(544))


def relaxed_entries_lost_that_were_not_synced(h: Script) -> None:
    h.relaxed_append(0, 5)
    h.sync(4)
    h.relaxed_append(5, 5)
    h.lac(6)
    h.end(7)
    h.read(range(8))
    h.deny(8)


def sync_of_unknown_outcome(h: Script) -> None:
    h.relaxed_append(0, 5)
    h.syncing().unknown()
    h.end(-1, length=0)


def log_of_several_ledgers_with_an_unknown_end_of_each(h: Script) -> None:
    for writer, ordinal in zip("abc", range(3)):
        h.open_log(writer)
        h.log_append(writer, 0, 2, [ordinal, 10 + ordinal, 0])
        h.log_appending(writer, 2, 3).unknown()
    h.log_read(
        ([0, 10, 0], values(range(3), "a")), ([1, 11, 0], values(range(2), "b")), ([2, 12, 0], values(range(2), "c"))
    )
    h.recover_log()
    h.log_read(([1, 11, 0], values(range(2), "b")), ([2, 12, 0], values(range(4), "c")), start=[0, 10, 3])


def many_takeovers(h: Script) -> None:
    """Each leader leaves appends of unknown outcome that were kept; a reader is under way all the time.

    An order that leaves one of them out is wrong long before the read shows it.
    """
    reading = h.log_reading()
    runs = []
    for ordinal in range(12):
        writer = f"writer {ordinal}"
        h.open_log(writer)
        h.log_append(writer, 0, 10, [ordinal, 10 + ordinal, 0])
        for first in range(10, 60, 10):
            h.log_appending(writer, first, 10).unknown()
        runs.append({"from": [ordinal, 10 + ordinal, 0], "values": values(range(60), writer)})
    h.recover_log()
    reading.ok(runs=runs)


def log_taken_over(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.log_appending("a", 3, 3).unknown()
    h.open_log("b")
    h.log_append("b", 0, 2, [1, 11, 0])
    h.log_read(([0, 10, 0], values(range(4), "a")), ([1, 11, 0], values(range(1), "b")))
    h.close_log("b")
    h.log_read(([1, 11, 0], values(range(2), "b")), start=[0, 10, 4])


def log_truncated_meanwhile(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.log_append("a", 3, 2, [1, 11, 0])
    truncating = h.truncating([0, 10, 3])
    h.log_read(([0, 10, 0], values(range(3), "a")))
    truncating.ok()
    h.log_read(([1, 11, 0], values(range(3, 5), "a")))
    h.truncating([1, 11, 1]).unknown()
    h.log_read(([1, 11, 0], values(range(3, 5), "a")))


CORRECT: tuple[Callable[[Script], None], ...] = (
    quiet_ledger,
    unknown_append_recovered_in_part,
    unknown_append_lost,
    unknown_close_then_recovery,
    entry_read_before_its_acknowledgement,
    recovery_beside_an_append,
    readers_with_different_lacs,
    readers_that_learn_the_end_one_after_the_other,
    failed_append_is_not_there,
    open_ledger_with_an_append_under_way,
    many_appends_of_unknown_outcome,
    relaxed_entries_lost_that_were_not_synced,
    sync_of_unknown_outcome,
    log_of_several_ledgers_with_an_unknown_end_of_each,
    many_takeovers,
    log_taken_over,
    log_truncated_meanwhile,
)


# ---- what it may not ----


def lost_acknowledged_entry(h: Script) -> None:
    h.append(0, 3)
    h.deny(2)


def lost_by_a_recovery(h: Script) -> None:
    h.append(0, 5)
    h.end(2)


def falling_lac(h: Script) -> None:
    h.append(0, 9)
    h.lac(7)
    h.lac(4)


def lac_that_falls_for_one_of_two_readers(h: Script) -> None:
    h.append(0, 9)
    h.lac(4, by="reader 1")
    h.lac(7, by="reader 2")
    h.lac(4, by="reader 1")
    h.lac(4, by="reader 2")


def reader_forgets_the_end(h: Script) -> None:
    h.append(0, 9)
    h.end(8, by="owner")
    h.learn_end(8)
    h.lac(4)


def denied_after_the_close(h: Script) -> None:
    h.append(0, 9)
    h.lac(7)
    h.end(8, by="owner")
    h.deny(8)


def lac_of_nothing(h: Script) -> None:
    h.append(0, 3)
    h.lac(3)


def two_ends(h: Script) -> None:
    h.append(0, 3)
    pending = h.appending(3, 2)
    h.end(2, by="recoverer 1")
    h.end(4, by="recoverer 2")
    pending.unknown()


def wrong_length(h: Script) -> None:
    h.append(0, 3)
    h.end(2, length=1)


def duplicated_entry(h: Script) -> None:
    h.append(0, 3)
    h.read([0, 1, 1])


def reordered_entries(h: Script) -> None:
    h.append(0, 3)
    h.read([0, 2, 1])


def foreign_bytes(h: Script) -> None:
    h.append(0, 3)
    h.read(range(3), text="foreign")


def acknowledged_after_the_close(h: Script) -> None:
    h.append(0, 3)
    h.end(2)
    h.append(3)


def failed_append_is_there(h: Script) -> None:
    h.append(0, 2)
    h.appending(2).failed()
    h.read(range(3))


def acknowledged_with_a_gap(h: Script) -> None:
    h.append(0, 2)
    h.append(3)


def unknown_append_lost_after_it_was_confirmed(h: Script) -> None:
    h.append(0, 2)
    h.appending(2, 3).unknown()
    h.lac(3)
    h.end(2)


def unknown_append_appears_after_the_end(h: Script) -> None:
    h.append(0, 2)
    h.appending(2).unknown()
    h.end(1)
    h.read(range(3))


def lost_in_an_open_ledger(h: Script) -> None:
    h.append(0, 5)
    h.lac(4)
    h.deny(3)


def synced_entry_of_a_relaxed_ledger_lost(h: Script) -> None:
    h.relaxed_append(0, 5)
    h.sync(4)
    h.end(3)


def confirmed_entry_of_a_relaxed_ledger_lost(h: Script) -> None:
    h.relaxed_append(0, 5)
    h.lac(2)
    h.end(1)


def synced_before_it_was_appended(h: Script) -> None:
    h.relaxed_append(0, 5)
    h.sync(5)
    h.relaxed_append(5)


def lost_in_the_middle_of_a_log(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.log_append("a", 3, 3, [1, 11, 0])
    h.log_append("a", 6, 3, [2, 12, 0])
    h.log_read(([0, 10, 0], values(range(3), "a")), ([2, 12, 0], values(range(6, 9), "a")))


def acknowledged_by_an_old_leader(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 2, [0, 10, 0])
    h.open_log("b")
    h.log_append("a", 2, 1, [0, 10, 2])


def lost_by_a_takeover(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.open_log("b")
    h.log_append("b", 0, 1, [1, 11, 0])
    h.log_read(([0, 10, 0], values(range(2), "a")), ([1, 11, 0], values(range(1), "b")))


def lost_end_of_a_log(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.recover_log()
    h.log_read(([0, 10, 0], values(range(2), "a")))


def pending_entry_of_an_old_leader_appears_late(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 1, [0, 10, 0])
    h.log_appending("a", 1).unknown()
    h.open_log("b")
    h.log_append("b", 0, 1, [1, 11, 0])
    h.log_read(([0, 10, 0], values(range(1), "a")), ([1, 11, 0], [*values(range(1), "b"), *values(range(1, 2), "a")]))


def truncated_entries_come_back(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.truncating([0, 10, 2]).ok()
    h.log_read(([0, 10, 0], values(range(3), "a")))


def reordered_log(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.log_read(([0, 10, 0], values([0, 2, 1], "a")))


def one_place_twice(h: Script) -> None:
    h.open_log("a")
    h.log_append("a", 0, 3, [0, 10, 0])
    h.log_append("a", 3, 1, [0, 10, 2])


DEFECTS: tuple[tuple[Callable[[Script], None], str], ...] = (
    (lost_acknowledged_entry, "entry 2 is lost: the reader was answered that it does not exist"),
    (lost_by_a_recovery, "entries 3 to 4 are lost: the end is said to be 2"),
    (falling_lac, "the LAC of this reader fell from 7 to 4"),
    (lac_that_falls_for_one_of_two_readers, "the LAC of this reader fell from 7 to 4"),
    (reader_forgets_the_end, "the LAC of this reader fell from 8 to 4"),
    (denied_after_the_close, "entry 8 is lost: the reader was answered that it does not exist"),
    (lac_of_nothing, "entry 3 was said to be confirmed: the ledger holds entries 0 to 2"),
    (two_ends, "two ends: the ledger was closed at entry 2, and the end is said to be 4"),
    (wrong_length, "the ledger is said to be 1 bytes long: its entries are 21"),
    (duplicated_entry, "and that is entry 1: it was appended as"),
    (reordered_entries, "and that is entry 1: it was appended as"),
    (foreign_bytes, "entry 2 was read as"),
    (acknowledged_after_the_close, "the ledger was closed at entry 2: entry 3 cannot be appended"),
    (failed_append_is_there, "entry 2 was read: the ledger holds entries 0 to 1"),
    (acknowledged_with_a_gap, "the next entry is 2: entry 3 cannot be appended"),
    (unknown_append_lost_after_it_was_confirmed, "entries 3 to 3 are lost: the end is said to be 2"),
    (unknown_append_appears_after_the_end, "entry 2 was read: the ledger holds entries 0 to 1"),
    (lost_in_an_open_ledger, "entry 3 is lost: the reader was answered that it does not exist"),
    (synced_entry_of_a_relaxed_ledger_lost, "entries 4 to 4 are lost: the end is said to be 3"),
    (confirmed_entry_of_a_relaxed_ledger_lost, "entries 2 to 2 are lost: the end is said to be 1"),
    (synced_before_it_was_appended, "entry 5 was said to be synced: the ledger holds entries 0 to 4"),
    (lost_in_the_middle_of_a_log, "and that is entry 8: it was appended as"),
    (acknowledged_by_an_old_leader, 'writer "b" cannot open the log: entries 2 to 2 of writer "a" were acknowledged'),
    (lost_by_a_takeover, "the log's entry 2 was read as"),
    (lost_end_of_a_log, "entries 2 to 2 of the log are lost"),
    (
        pending_entry_of_an_old_leader_appears_late,
        'cannot open the log: entries 1 to 1 of writer "a" were acknowledged',
    ),
    (truncated_entries_come_back, "a read from the beginning began with the log's entry 0"),
    (reordered_log, "and that is entry 1: it was appended as"),
    (one_place_twice, "cannot follow the one at ordinal 0, ledger 10, entry 2"),
)


def undecidable(h: Script) -> None:
    """Forty clients take over a log at once, and a read finds what no client wrote. The orders are too many to try."""
    opening = [h.opening(f"writer {number}") for number in range(40)]
    h.log_read(([0, 10, 0], values(range(1), "nobody")))
    for opened in opening:
        opened.ok()


def write(path: Path, script: Callable[[Script], None]) -> None:
    """Write the history that a script makes."""
    h = Script(path)
    script(h)
    h.close()
