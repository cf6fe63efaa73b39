"""The checkers: each looks at one ledger's history and names what is wrong with it, in words.

Names are those of the reliability notes: C1 acknowledged is durable, C2 one end, C3 one value an id, C4 the LAC, C5 one
writer, C6 fences, C7 the metadata register, C8 replicas, C11 what is confirmed survives the loss of everything
unsynced, C12 everything ends after the faults do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from bkspark.core.metadata import LedgerMetadata, LedgerState
from tests.simulation.history import LedgerHistory

_LEGAL = {
    (LedgerState.OPEN, LedgerState.OPEN),
    (LedgerState.OPEN, LedgerState.IN_RECOVERY),
    (LedgerState.OPEN, LedgerState.CLOSED),
    (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
}


def acknowledged_is_durable(ledger: LedgerHistory) -> Iterator[str]:
    """C1: every acknowledged entry lies at or below the end, and reads as it was written."""
    final = ledger.audits[-1] if ledger.audits else None
    for entry_id in range(ledger.last_acknowledged + 1):
        if any(entry_id > close.last_entry for close in ledger.closes):
            yield f"entry {entry_id} was acknowledged, and lies behind the end"
        elif final is not None and (
            entry_id >= len(final.copies) or ledger.invoked[entry_id][0] not in final.copies[entry_id].payloads
        ):
            yield f"entry {entry_id} was acknowledged, and cannot be read"


def one_end(ledger: LedgerHistory) -> Iterator[str]:
    """C2: all who learned that the ledger is closed learned the same, and it stays so."""
    ends = {(close.last_entry, close.length) for close in ledger.closes}
    if len(ends) > 1:
        yield "different ends: " + ", ".join(
            f"{close.who} {close.last_entry} ({close.length} bytes)" for close in ledger.closes
        )


def one_value(ledger: LedgerHistory) -> Iterator[str]:
    """C3: whoever reads an id gets the bytes that were written under it."""
    for who, entry_id, payload in ledger.reads:
        written = ledger.invoked.get(entry_id)
        if written is None or written[0] != payload:
            yield f"{who} read {payload!r} as entry {entry_id}"
    for audit in ledger.audits:
        for entry_id, copies in enumerate(audit.copies):
            foreign = copies.payloads - {ledger.invoked[entry_id][0] if entry_id in ledger.invoked else b""}
            if foreign:
                yield f"a bookie holds {foreign} as entry {entry_id}, {audit.what}"


def confirmed_stays(ledger: LedgerHistory) -> Iterator[str]:
    """C4: a reader's LAC never falls; what anybody was told is confirmed stays readable, and below the end."""
    highest: dict[str, int] = {}
    for who, lac, _ in ledger.lacs:
        if lac < highest.get(who, -1):
            yield f"the LAC of {who} fell from {highest[who]} to {lac}"
        highest[who] = max(lac, highest.get(who, -1))
    for who, entry_id, lac in ledger.denied:
        yield f"{who} knew that {lac} is confirmed, and was told that there is no entry {entry_id}"
    told = max(highest.values(), default=-1)
    for close in ledger.closes:
        if told > close.last_entry:
            yield f"{told} was confirmed, and the end that {close.who} learned is {close.last_entry}"


def single_writer(ledger: LedgerHistory) -> Iterator[str]:
    """C5: nothing added after somebody learned of the ledger's end is acknowledged."""
    if not ledger.closes:
        return
    closed = min(close.when for close in ledger.closes)
    for entry_id, (_, when) in ledger.invoked.items():
        if when > closed and entry_id <= ledger.last_acknowledged:
            yield f"entry {entry_id} was added after the ledger had been closed, and acknowledged"


def fences_cover(ledger: LedgerHistory) -> Iterator[str]:
    """C6: when a recovery has closed the ledger, no Qa bookies of any write set would still take its owner's adds."""
    for audit in ledger.audits:
        if audit.fenced is None:
            continue
        size = len(audit.fenced)
        for first in range(size):
            unfenced = sum(not audit.fenced[(first + i) % size] for i in range(audit.write_quorum))
            if unfenced >= audit.ack_quorum:
                yield f"{audit.what}: {unfenced} bookies of a write set are not fenced, fenced slots {audit.fenced}"
                break


def metadata_register(ledger: LedgerHistory) -> Iterator[str]:
    """C7: versions go up by one, states and fragments change only as they may."""
    for (_, before, _), (_, after, by) in pairwise(ledger.changes):
        if after.version != before.version + 1:
            yield f"{by}: version {after.version} follows {before.version}"
        yield from (f"{by}, version {after.version}: {fault}" for fault in _step(before.metadata, after.metadata))


def _step(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[str]:
    if (before.state, after.state) not in _LEGAL:
        yield f"{before.state.name} became {after.state.name}"
    quorums = [(it.ensemble_size, it.write_quorum, it.ack_quorum, it.digest, it.password) for it in (before, after)]
    if quorums[0] != quorums[1]:
        yield "what never changes was changed"
    old, new = before.fragments, after.fragments
    if after.state is LedgerState.IN_RECOVERY and old != new:
        yield "a recovery published its ensembles before the end"
    # An ensemble change replaces the last fragment or adds one; a recovery may have made several before it closes.
    if new[: len(old) - 1] != old[:-1]:
        yield "an earlier fragment was changed"
    if len(new) >= len(old) and new[len(old) - 1].first_entry != old[-1].first_entry:
        yield "the first entry of a fragment moved"
    if len(new) < len(old) or (after.state is not LedgerState.CLOSED and len(new) > len(old) + 1):
        yield f"{len(old)} fragments became {len(new)}"
    for fragment in new:
        if len(set(fragment.bookies)) != after.ensemble_size:
            yield f"a bookie stands twice in {fragment.bookies}"


def replicas(ledger: LedgerHistory) -> Iterator[str]:
    """C8: when acknowledged, at the close and from then on Qa durable copies of an entry lie where metadata says."""
    for entry_id, ack_quorum, copies in ledger.copies_at_ack:
        if copies.valid + copies.damaged < ack_quorum:
            yield f"entry {entry_id} was acknowledged with {copies.valid} copies of {ack_quorum}"
    for audit in ledger.audits:
        for entry_id, copies in enumerate(audit.copies[: audit.last_entry + 1]):
            if copies.valid + copies.damaged < audit.ack_quorum:
                yield f"{audit.what}: entry {entry_id} has {copies.valid} copies of {audit.ack_quorum}"


def confirmed_is_synced(ledger: LedgerHistory) -> Iterator[str]:
    """C11: everything up to a LAC that was told lies on disks: audits see durable copies alone."""
    for audit in ledger.audits:
        told = max((lac for _, lac, when in ledger.lacs if when <= audit.when), default=-1)
        for entry_id in range(told + 1):
            copies = audit.copies[entry_id] if entry_id < len(audit.copies) else None
            if copies is None or copies.valid + copies.damaged < audit.ack_quorum:
                yield f"{audit.what}: {told} was confirmed, entry {entry_id} is not synced by {audit.ack_quorum}"
                break


def everything_ends(ledger: LedgerHistory) -> Iterator[str]:
    """C12: a bounded time after the faults nothing is pending."""
    yield from ledger.pending


CHECKERS: dict[str, Callable[[LedgerHistory], Iterator[str]]] = {
    "C1": acknowledged_is_durable,
    "C2": one_end,
    "C3": one_value,
    "C4": confirmed_stays,
    "C5": single_writer,
    "C6": fences_cover,
    "C7": metadata_register,
    "C8": replicas,
    "C11": confirmed_is_synced,
    "C12": everything_ends,
}


def violations(ledger: LedgerHistory) -> list[str]:
    """Return everything that any checker says, each line beginning with the checker's name."""
    return [f"{name}: {fault}" for name, check in CHECKERS.items() for fault in check(ledger)]
