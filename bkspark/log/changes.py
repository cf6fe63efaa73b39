"""Changes of a log's list of ledgers: a head in, a head and new pages out. PURE.

The latest ledgers are in the head itself (`tail`). If there are too many, they move to pages: first to the last page,
which is rewritten under another name while it has room, then to new pages. A full page is not read or written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bkspark.errors import DataLoss, VersionPublished
from bkspark.log.formats import (
    LAST_EPOCHS_MAX,
    PAGE_LEDGERS_MAX,
    QUERIES_OF_A_NAME_MAX,
    TAIL_LEDGERS_MAX,
    LastEpoch,
    LogHead,
    PageRef,
    Publisher,
    SegmentFacts,
)
from bkspark.log.positions import NO_LEDGER, Position
from bkspark.log.schemas import extended as extended_schemas
from bkspark.log.schemas import trimmed
from bkspark.log.times import Mark, TimeIndex, added
from bkspark.log.times import emptied as emptied_times
from bkspark.log.times import trimmed as trimmed_times


@dataclass(frozen=True, slots=True)
class NewPage:
    """A page to write before the head that names it."""

    ref: PageRef
    ledgers: tuple[SegmentFacts, ...]
    """The segments of the page, in the log's order."""


def page_to_extend(head: LogHead, added_count: int, tail_max: int = TAIL_LEDGERS_MAX) -> PageRef | None:
    """Return the page whose ledgers `appended` needs: the last one, if the tail will move and it has room."""
    if len(head.tail) + added_count <= tail_max or not head.pages:
        return None
    last = head.pages[-1]
    return last if head.tail_ordinal - last.first_ordinal < PAGE_LEDGERS_MAX else None


def appended(
    head: LogHead,
    added: Sequence[SegmentFacts],
    extended: Sequence[SegmentFacts] | None,
    token: str,
    tail_max: int = TAIL_LEDGERS_MAX,
) -> tuple[LogHead, list[NewPage]]:
    """Return the head with ledgers at the end of the list, and the pages to write first.

    Args:
        extended: the ledgers of `page_to_extend(head, len(added), tail_max)`, None if it returned None.
        token: part of the names of new pages, so that they are unique.
        tail_max: ledgers that may be in the head itself; above that, they move to pages.
    """
    ledgers = _joined((*head.tail, *added), len(head.tail) - 1)
    if len(ledgers) <= tail_max:
        return replace(head, tail=ledgers), []
    # Ledgers that are not known to be closed stay in the tail, where their ends can still be recorded, unless they are
    # too many.
    end = head.tail_ordinal + len(ledgers)
    kept = end - min((ordinal for ordinal in head.open_ordinals if ordinal >= head.tail_ordinal), default=end)
    cut = len(ledgers) - (kept if kept <= TAIL_LEDGERS_MAX else 0)
    pages, first_ordinal, moved = head.pages, head.tail_ordinal, ledgers[:cut]
    if extended is not None:
        pages, first_ordinal, moved = pages[:-1], pages[-1].first_ordinal, (*extended, *moved)
    new = [
        NewPage(PageRef(f"{first_ordinal + i}-{token}"), moved[i : i + PAGE_LEDGERS_MAX])
        for i in range(0, len(moved), PAGE_LEDGERS_MAX)
    ]
    refs = (*pages, *(page.ref for page in new))
    return replace(head, pages=refs, tail_ordinal=head.tail_ordinal + cut, tail=ledgers[cut:]), new


def _joined(ledgers: tuple[SegmentFacts, ...], first: int) -> tuple[SegmentFacts, ...]:
    """Return the ledgers with adjacent slices merged; those before `first` stay as they are."""
    done = list(ledgers[: max(0, first)])
    for facts in ledgers[len(done) :]:
        one = done[-1].joined(facts) if len(done) > max(0, first) else None
        if one is None:
            done.append(facts)
        else:
            done[-1] = one
    return tuple(done)


def timed(head: LogHead, added_ledgers: Sequence[SegmentFacts], now_ms: int) -> TimeIndex:
    """Return the time index of a head, with a mark for ledgers that are added to its list at `now_ms`."""
    if not added_ledgers:
        return head.times
    first = added_ledgers[0]
    grows = bool(head.tail and head.tail[-1].joined(first))
    return added(head.times, Mark(head.end_ordinal - grows, first.first_entry if grows else 0, now_ms))


def note_closed(head: LogHead, closed: Iterable[tuple[int, SegmentFacts]]) -> LogHead:
    """Return the head with ledgers recorded as closed. `closed`: ordinal and facts; ends are recorded in the tail
    only."""
    tail, open_ordinals = list(head.tail), set(head.open_ordinals)
    for ordinal, facts in closed:
        open_ordinals.discard(ordinal)
        if head.tail_ordinal <= ordinal < head.end_ordinal:
            assert tail[ordinal - head.tail_ordinal].ledger_id == facts.ledger_id
            tail[ordinal - head.tail_ordinal] = facts
    return replace(head, tail=tuple(tail), open_ordinals=tuple(sorted(open_ordinals)))


def last_version(head: LogHead, name: str) -> int | None:
    """Return the last version that was published under a name (for a query: its last epoch), or None."""
    return max((item[1] for item in head.last_epochs if item[0] == name), default=None)


def is_repeated(head: LogHead, log: str, publisher: Publisher) -> bool:
    """Return whether a publisher has published its version, or a later one, so that publishing it changes nothing.

    A query repeats its last epoch after a crash; a job without a query may be run again at any time. The same version
    of another query has other rows: regarding it as a repetition would lose them.

    Raises:
        VersionPublished: another publisher published the version, or a later one, under the name.
    """
    return is_repetition(head.last_epochs, f"log {log}", publisher)


def is_repetition(last_epochs: Sequence[LastEpoch], place: str, publisher: Publisher) -> bool:
    """As `is_repeated`, for remembered publishers that are not a log's; `place` is their name in errors."""
    of_name = [Publisher(*item) for item in last_epochs if item[0] == publisher.name]
    if not of_name or publisher.version > of_name[-1].version:
        return False
    if any(item.query == publisher.query and publisher.version <= item.version for item in of_name):
        return True
    last = of_name[-1]
    by = "it is not known by which query" if last.query is None else f"by query {last.query}"
    raise VersionPublished(
        f"version {publisher.version} of {publisher.name!r} cannot be published in {place} by "
        f"{f'query {publisher.query}' if publisher.query else 'a job without a query'}: another query or job has "
        f"published up to version {last.version} ({by})",
        last_version=last.version,
    )


def published(head: LogHead, publisher: Publisher) -> LogHead:
    """Return the head with a version recorded as the last one of its publisher.

    The LAST_EPOCHS_MAX most recent publishers are remembered; QUERIES_OF_A_NAME_MAX of one name.
    """
    kept = with_publisher(head.last_epochs, publisher)
    # A head that names a query has a higher format version than one with slices.
    return replace(head, last_epochs=kept, has_slices=head.has_slices or publisher.query is not None)


def with_publisher(last_epochs: Sequence[LastEpoch], publisher: Publisher) -> tuple[LastEpoch, ...]:
    """Return remembered publishers with one recorded as the latest, within the limits of `published`."""
    name, version, query = publisher
    item: LastEpoch = (name, version) if query is None else (name, version, query)
    others = [each for each in last_epochs if each[0] != name or each[2:] != item[2:]]
    of_name = [each for each in others if each[0] == name]
    dropped = set(of_name[: max(0, len(of_name) + 1 - QUERIES_OF_A_NAME_MAX)])
    return (*(each for each in others if each not in dropped), item)[-LAST_EPOCHS_MAX:]


def truncated(head: LogHead, before: Position, first_ordinal: int) -> LogHead:
    """Return the head without the ledgers before `first_ordinal`, beginning at the position `before`.

    Args:
        before: in ledger `first_ordinal`, or at the end of the ledger before it.
    """
    assert head.first_ordinal <= first_ordinal <= head.end_ordinal
    pages = tuple(ref for index, ref in enumerate(head.pages) if head.page_end(index) > first_ordinal)
    gone = max(0, first_ordinal - head.tail_ordinal)
    return replace(
        head,
        start=before,
        first_ordinal=first_ordinal,
        pages=pages,
        tail_ordinal=head.tail_ordinal + gone,
        tail=head.tail[gone:],
        open_ordinals=tuple(ordinal for ordinal in head.open_ordinals if ordinal >= first_ordinal),
        schemas=trimmed(head.schemas, first_ordinal),
        times=trimmed_times(head.times, before),
    )


def emptied(head: LogHead) -> LogHead:
    """Return the head with an empty list. The writer loses the log, and every earlier position refers to lost data."""
    end = head.end_ordinal
    return replace(
        head,
        start=Position.beginning(end),
        first_ordinal=end,
        pages=(),
        tail_ordinal=end,
        tail=(),
        open_ordinals=(),
        writer=None,
        # The present schema also applies to what is written next, unless that brings another one.
        schemas=tuple(ref._replace(first_ordinal=end) for ref in head.schemas[-1:]),
        times=emptied_times(head.times, end),
    )


def with_schema(head: LogHead, name: str, ordinal: int) -> LogHead:
    """Return the head with a schema that applies from `ordinal` on; unchanged if it is the present one."""
    if head.schemas and head.schemas[-1].name == name:
        return head
    # A head with schemas has a higher format version than one with slices.
    return replace(head, schemas=extended_schemas(head.schemas, name, ordinal), has_slices=True)


def first_to_read(head: LogHead, name: str, position: Position) -> tuple[int, int]:
    """Return (ordinal, entry) to read first for a position: the end ordinal and 0 if no ledger is left to read.

    Raises:
        DataLoss: the position is before the log's start, or after its end.
    """
    if position < head.start:
        raise DataLoss(
            f"log {name} begins at {head.start}; what follows {position} has been truncated or overwritten",
            ledger_id=None if position.ledger_id == NO_LEDGER else position.ledger_id,
        )
    if position.ordinal > head.end_ordinal or (
        position.ordinal == head.end_ordinal and position.ledger_id != NO_LEDGER
    ):
        raise DataLoss(
            f"log {name} ends before ordinal {head.end_ordinal}; {position} lies beyond that: it belongs to another "
            f"log, or the log was deleted and created again"
        )
    # If the position is below the first ordinal, but not before the start, it is the end of a ledger that is gone.
    return max((position.ordinal, position.entry_id), (head.first_ordinal, 0))
