"""Planted defects of the commit protocol, and the first random schedule that notices each.

`python -m tests.simulation.commit_mutants [--schedules N]` prints who was noticed when.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bkspark.log import attempts, changes, epochs, formats, heads, log, sharing, store, unregistered
from bkspark.log.formats import LogHead, Publisher, SegmentFacts
from bkspark.metadata.tree import ANY_VERSION, Delete, Set
from tests.planting import Plant, changed, replaced
from tests.simulation.commits import Schedule

SCHEDULES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect; `where` and `name` is what it replaces, `make` returns the replacement from the original.

    first_seed: where the tests begin to look, as one that strikes rarely takes long to find.
    """

    bug: str
    where: Any
    name: str
    make: Callable[[Any], Any]
    first_seed: int = 1

    def planted(self) -> Plant:
        """The product has the defect inside this context."""
        return changed(self.where, self.name, self.make)


def _always(value: object) -> Callable[[Any], Any]:
    return lambda _: lambda *args, **kwargs: value


def _never_async(value: object) -> Callable[[Any], Any]:
    def make(_: Any) -> Any:
        async def replaced(*args: object, **kwargs: object) -> object:
            return value

        return replaced

    return make


def _slices_from_the_beginning(original: Any) -> Any:
    async def append(self: sharing.SharedLedger, batches: Any) -> SegmentFacts:
        return replace(await original(self, batches), first_entry=0)

    return append


def _not_awaited(_: Any) -> Any:
    async def append(self: sharing.SharedLedger, batches: Any) -> SegmentFacts:
        if self._writer is None:
            self._writer = await self._log.create_attempt(self._owner, self.options)
        first = self._writer.last_entry + 1
        for batch in batches:
            await self._writer.submit(batch)
        count = sum(len(batch) for batch in batches)
        return SegmentFacts(self._writer.ledger_id, first + count - 1, 1, first)

    return append


def _rows_last(original: Any) -> Any:
    async def listed(outputs: Any, shared: Any) -> Any:
        return await original(sorted(outputs, key=lambda output: bool(output.entries)), shared)

    return listed


def _last_rows_forgotten(original: Any) -> Any:
    async def listed(outputs: Any, shared: Any) -> Any:
        found = await original(outputs, shared)
        return found[:-1] if len(found) > 1 else found

    return listed


def _condemns_what_is_listed(_: Any) -> Any:
    async def condemn(self: Any, name: str, log_id: str, chosen: Any, head: Any) -> Any:
        doomed = [pending.ledger_id for pending in chosen]
        if not doomed:
            return heads.Change(None, doomed)
        changed, nodes = attempts.with_condemned(head, name, doomed)
        still = await self.pending_ids(name)
        also = [Delete(formats.pending_path(name, each)) for each in doomed if each in still]
        return heads.Change(changed, doomed, nodes, also)

    return condemn


def _leaves_registered(original: Any) -> Any:
    async def condemn(self: Any, name: str, log_id: str, chosen: Any, head: Any) -> Any:
        return replace(await original(self, name, log_id, chosen, head), also=())

    return condemn


def _sets_any_version(_: Any) -> Any:
    def make(path: str, data: bytes, version: int) -> Set:
        return Set(path, data, ANY_VERSION)

    return make


def _emptied_keeps(_: Any) -> Any:
    return lambda head: head


def _deletes_before_the_change(original: Any) -> Any:
    async def overwrite(self: log.Log, ledgers: Any, **options: Any) -> Any:
        for item in await (await self.snapshot()).ledgers():
            await self._delete_ledger(item.ledger_id)
        return await original(self, ledgers, **options)

    return overwrite


def _truncates_shared(original: Any) -> Any:
    async def truncate(self: store.LogStore, name: str, before: Any, **options: Any) -> Any:
        async def alone(snapshot: Any, first: int = 0, end: int | None = None) -> Any:
            return [] if end is None and first else await ledgers(snapshot, first, end)

        ledgers = store.LogSnapshot.ledgers
        with replaced(store.LogSnapshot, "ledgers", alone):
            return await original(self, name, before, **options)

    return truncate


def _takes_any_query(_: Any) -> Any:
    def is_repeated(head: LogHead, log: str, publisher: Publisher) -> bool:
        last = changes.last_version(head, publisher.name)
        return last is not None and publisher.version <= last

    return is_repeated


def _refuses_lower_versions_only(original: Any) -> Any:
    def is_repeated(head: LogHead, log: str, publisher: Publisher) -> bool:
        return publisher.version == changes.last_version(head, publisher.name) or original(head, log, publisher)

    return is_repeated


def _forgets_the_query(original: Any) -> Any:
    return lambda head, publisher: original(head, publisher._replace(query=None))


def _forgets_other_queries(original: Any) -> Any:
    def published(head: LogHead, publisher: Publisher) -> LogHead:
        others = tuple(item for item in head.last_epochs if item[0] != publisher.name)
        return original(replace(head, last_epochs=others), publisher)

    return published


def _registers_unchecked(original: Any) -> Any:
    async def add(self: Any, name: str, ledger_id: int, owner: Any, *, unchanged: Any = None) -> None:
        await original(self, name, ledger_id, owner)

    return add


MUTANTS = (
    Mutant("another query's version is a repetition, where the list changes", changes, "is_repeated", _takes_any_query),
    Mutant("another query's version is a repetition, before it is written", log, "is_repeated", _takes_any_query),
    Mutant("another query's last version is a repetition", log, "is_repeated", _refuses_lower_versions_only),
    Mutant("the query is not noted with its version", changes, "published", _forgets_the_query),
    Mutant("a name remembers its last query alone", changes, "published", _forgets_other_queries),
    Mutant("an epoch is published as often as it comes", store, "_repeated", _always(None)),
    Mutant("the epoch is not noted with its rows", store, "_remember", lambda _: lambda head, publisher: head),
    Mutant("the list is changed whatever version it has", heads, "Set", _sets_any_version),
    Mutant("ledgers are published that are not pending", attempts.AttemptStore, "check", _never_async(None)),
    Mutant("a condemned ledger stays pending", attempts.AttemptStore, "_condemn", _leaves_registered),
    Mutant("pending ledgers are deleted though listed", attempts.AttemptStore, "_condemn", _condemns_what_is_listed),
    Mutant("a slice begins with its ledger", sharing.SharedLedger, "append", _slices_from_the_beginning),
    Mutant("published before it is acknowledged", sharing.SharedLedger, "append", _not_awaited),
    Mutant("rows come after the ledgers of later partitions", epochs, "listed", _rows_last),
    Mutant("the last partition is left out", epochs, "listed", _last_rows_forgotten),
    Mutant("complete mode keeps the old content", changes, "emptied", _emptied_keeps),
    Mutant("complete mode deletes before it publishes", log.Log, "overwrite", _deletes_before_the_change),
    Mutant("truncation deletes ledgers with slices after it", store.LogStore, "truncate", _truncates_shared),
    Mutant("a ledger is registered that a vacuum closed", attempts.AttemptStore, "add", _registers_unchecked),
    Mutant("an unregistered ledger is not closed first", unregistered, "_is_recovered_empty", _never_async(True), 4500),
    Mutant("a vacuum leaves unregistered ledgers", log, "delete_unregistered", _never_async(0)),
    Mutant("sweeping forgets what it should delete", log.Log, "_delete_ledger", _never_async(None)),
)


def hunt(mutant: Mutant, first: int, schedules: int) -> int | None:
    """Return the first seed, from `first` on, whose schedule notices the defect, None if none of this many does.

    Only what a checker says counts: an exception of the harness is let through.
    """
    with mutant.planted():
        for seed in range(first, first + schedules):
            if Schedule(seed).run().violations:
                return seed
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.commit_mutants")
    parser.add_argument("--schedules", type=int, default=SCHEDULES_MAX, help="schedules that a defect may survive")
    options = parser.parse_args()
    missed = 0
    for mutant in MUTANTS:
        seed = hunt(mutant, 1, options.schedules)
        missed += seed is None
        print(f"{'missed' if seed is None else seed:>8}  {mutant.bug}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
