"""The checkers: each looks at one ledger's history and names what is wrong with it, in words.

Names are those of docs/reliability.md: C1 acknowledged is durable, C2 one end, C3 one value an id, C4 the LAC, C5 one
writer, C6 fences, C7 the metadata register, C8 replicas, C11 what is confirmed survives the loss of everything
unsynced, C12 everything ends after the faults do, and without faults soon.

C1, C5 and the first half of C8 ask for what survives the loss of Qa - 1 bookies. The rest asks for what is due where no
fault excuses less: every copy that could be written, a LAC that readers of an open ledger can follow, the sum of the
payloads as length, and no wait for a time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.core.striping import write_set
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
    """C2: all who learned that the ledger is closed learned the same, and the length is the sum of the payloads."""
    ends = {(close.last_entry, close.length) for close in ledger.closes}
    if len(ends) > 1:
        yield "different ends: " + ", ".join(
            f"{close.who} {close.last_entry} ({close.length} bytes)" for close in ledger.closes
        )
    for last_entry, length in ends:
        entries = [ledger.invoked.get(entry_id) for entry_id in range(last_entry + 1)]
        stored = sum(ledger.size_of(entry[0]) for entry in entries if entry is not None)
        if None not in entries and length != stored and not _hides_its_length(ledger, last_entry):
            yield f"the length is {length}, and entries up to {last_entry} have {stored} bytes"
    for bookie, entry_id, length in ledger.wrong_lengths:
        yield f"entry {entry_id} at {bookie} says that {length} bytes end with it"


def _hides_its_length(ledger: LedgerHistory, last_entry: int) -> bool:
    """Whether a recovery found nothing above its LAC, and a fault struck every bookie that has the entry there.

    The length is in the last entry; a recovery does not fail if no bookie returns that.
    """
    closed = [(stored.metadata, by) for _, stored, by in ledger.changes if stored.metadata.is_closed]
    if not closed or last_entry < 0 or last_entry in ledger.rewritten.get(closed[0][1], ()):
        return False
    metadata, closer = closed[0]
    bookies = metadata.fragment_of(last_entry).bookies
    slots = write_set(last_entry, metadata.ensemble_size, metadata.write_quorum)
    copies = ledger.audits[-1].copies if ledger.audits else []
    without = copies[last_entry].missing if last_entry < len(copies) else ()
    holders = [bookies[slot] for slot in slots if bookies[slot] not in without]
    # A recovery that rewrote nothing may have left no other trace than its first change.
    recoverers = {by for _, stored, by in ledger.changes if stored.metadata.state is LedgerState.IN_RECOVERY}
    is_recovery = closer in ledger.rewritten or closer in recoverers
    return is_recovery and all(ledger.is_disturbed(closer, bookie) for bookie in holders)


def one_value(ledger: LedgerHistory) -> Iterator[str]:
    """C3: every read of an id returns the bytes that were written under it."""
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
    """C4: a reader's LAC never falls and is not stale; what was confirmed stays readable, and at or below the end."""
    highest: dict[str, int] = {}
    for who, lac, _ in ledger.lacs:
        if lac < highest.get(who, -1):
            yield f"the LAC of {who} fell from {highest[who]} to {lac}"
        highest[who] = max(lac, highest.get(who, -1))
    for who, entry_id, lac in ledger.denied:
        yield f"{who} knew that {lac} is confirmed, and was answered that there is no entry {entry_id}"
    known = max(highest.values(), default=-1)
    for close in ledger.closes:
        if known > close.last_entry:
            yield f"{known} was confirmed, and the end that {close.who} learned is {close.last_entry}"
    for look in ledger.looks:
        if look.lac < look.owed:
            yield f"{look.who} was given LAC {look.lac}, and {look.owed} had been confirmed before it asked"
    for attempt, lacs in ledger.recovery_lacs.items():
        if len(lacs) > 1:
            yield f"{attempt} wrote entries back with the LACs {sorted(lacs)}, and a recovery's LAC is frozen"


def single_writer(ledger: LedgerHistory) -> Iterator[str]:
    """C5: nothing added after a client learned of the ledger's end is acknowledged."""
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
    end = min((close.last_entry for close in ledger.closes), default=None)
    for who, bookie, entry_id in ledger.unfenced_negatives:
        # What lies below the end a recovery may ask without a fence, for its length.
        if end is not None and entry_id > end:
            yield f"{bookie} answered {who} that it lacks entry {entry_id}, and was not fenced durably"


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
            yield f"a bookie is twice in {fragment.bookies}"


def replicas(ledger: LedgerHistory) -> Iterator[str]:
    """C8: when acknowledged, at the close and from then on Qa durable copies of an entry are where metadata says.

    In the end all Qw are, except on bookies that a fault kept from it.
    """
    for entry_id, ack_quorum, copies in ledger.copies_at_ack:
        if copies.valid + copies.damaged < ack_quorum:
            yield f"entry {entry_id} was acknowledged with {copies.valid} copies of {ack_quorum}"
    for audit in ledger.audits:
        for entry_id, copies in enumerate(audit.copies[: audit.last_entry + 1]):
            if copies.valid + copies.damaged < audit.ack_quorum:
                yield f"{audit.what}: entry {entry_id} has {copies.valid} copies of {audit.ack_quorum}"
    final = ledger.audits[-1] if ledger.audits else None
    for entry_id, copies in enumerate(final.copies[: final.last_entry + 1] if final else ()):
        for bookie in copies.missing:
            if not _is_excused(ledger, bookie, entry_id):
                yield f"{bookie} does not hold entry {entry_id}, and no fault kept it from that"


def _is_excused(ledger: LedgerHistory, bookie: str, entry_id: int) -> bool:
    """Whether something explains that a bookie of an entry's write set does not hold it.

    What a recovery wrote back it sent to the whole write set. Everything else its owner did, unless the bookie's fence
    was faster.
    """
    closer = next((by for _, stored, by in ledger.changes if stored.metadata.is_closed), "")
    if entry_id in ledger.rewritten.get(closer, ()):
        # It does not wait for a bookie that refuses load while Qa others took the entry.
        return ledger.is_disturbed(closer, bookie) or bookie in ledger.loaded
    owner = ledger.changes[0][2]
    if ledger.is_disturbed(owner, bookie) or (bookie, entry_id) in ledger.fenced_out:
        return True
    return bookie in ledger.loaded and not (ledger.is_settled and _stays(ledger, bookie, entry_id))


def _stays(ledger: LedgerHistory, bookie: str, entry_id: int) -> bool:
    """Whether a bookie kept its slot from the fragment of an entry on."""
    fragments = ledger.changes[-1][1].metadata.fragments
    at = max(i for i, fragment in enumerate(fragments) if fragment.first_entry <= entry_id)
    slots = {fragment.bookies.index(bookie) if bookie in fragment.bookies else -1 for fragment in fragments[at:]}
    return len(slots) == 1 and -1 not in slots


def confirmed_is_synced(ledger: LedgerHistory) -> Iterator[str]:
    """C11: everything up to a reported LAC is on disks: audits see only durable copies."""
    for audit in ledger.audits:
        known = max((lac for _, lac, when in ledger.lacs if when <= audit.when), default=-1)
        for entry_id in range(known + 1):
            copies = audit.copies[entry_id] if entry_id < len(audit.copies) else None
            if copies is None or copies.valid + copies.damaged < audit.ack_quorum:
                yield f"{audit.what}: {known} was confirmed, entry {entry_id} is not synced by {audit.ack_quorum}"
                break


def everything_ends(ledger: LedgerHistory) -> Iterator[str]:
    """C12: a bounded time after the faults nothing is pending; without silent faults nothing waits for a time-out."""
    yield from ledger.pending
    if ledger.prompt_ns is None:
        return
    next_entry = 0
    for last_entry, when in ledger.acknowledged:
        for entry_id in ledger.invoked.keys() & set(range(next_entry, last_entry + 1)):
            waited_ms = (when - ledger.invoked[entry_id][1]) / 1e6
            if waited_ms * 1e6 > ledger.prompt_ns:
                yield f"entry {entry_id} was acknowledged after {waited_ms:.0f} ms, and nothing held it up"
        next_entry = max(next_entry, last_entry + 1)
    for wait in ledger.waits if not ledger.prompt_adds_only else ():
        if wait.ended - wait.began > ledger.prompt_ns:
            yield f"{wait.what} took {(wait.ended - wait.began) / 1e6:.0f} ms, and nothing held it up"


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
