"""Every operation on a log, with another one at each of its metadata calls: as if one came after the other.

A process carries out one operation. Before one of its calls to the metadata store, another process carries out a second
operation completely. What the log is then, and what both were answered, must be what comes out when the two run one
after the other, in one of both orders. All pairs of operations are run, at every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError
from bkspark.log.consumer_nodes import Consumer
from bkspark.log.consumers import ConsumerRegistration
from bkspark.log.expiry import Expiry
from bkspark.log.formats import Publisher, SegmentFacts, SegmentOwner, log_path
from bkspark.log.positions import Position
from bkspark.log.retention import Retention
from bkspark.log.routing import Part, RoutedCommits
from bkspark.log.schemas import SchemaChange, StoredSchema
from bkspark.log.store import LogStore
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.uri import MetadataUri
from tests.log.world import JOB, closed, slice_of
from tests.metadata.interruptions import CALLS, InterruptedTree, Interruption, surely

URI = "zk://127.0.0.1:2181/ledgers"
METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("127.0.0.1:3181",)),))
NOW_MS = 10_000
SHARER = SegmentOwner("query", "q1")
WRITER, OTHER = "a" * 16, "b" * 16
SCHEMA = SchemaChange(StoredSchema("json", '{"fields":[],"type":"struct"}'), None)
CALLS_MAX = 200


def each_call(name: str) -> Iterator[int]:
    """Yield numbers of calls, until the caller ends the loop because the operation makes no call of that number."""
    yield from range(CALLS_MAX)
    raise AssertionError(f"{name} makes more than {CALLS_MAX} calls")


class CountedTree(MemoryTree):
    """A session whose calls have numbers, from 0. Subclasses say what becomes of each."""

    def __init__(self, server: MemoryStore, session_id: int) -> None:
        super().__init__(server, session_id, timeout_s=10.0)
        self._numbers = itertools.count()
        for name in CALLS:
            setattr(self, name, partial(self._counted, getattr(self, name)))

    async def _counted(self, call: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        return await self.carry_out(next(self._numbers), partial(call, *arguments, **named))

    @abstractmethod
    async def carry_out(self, number: int, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what the call returns, unless something becomes of it."""


class MeddledTree(CountedTree):
    """A session before whose call number `at` another process acts. `has_met`: it did."""

    def __init__(self, server: MemoryStore, at: int, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, session_id=1_009)
        self.has_met = False
        self._at = at
        self._act = act

    async def carry_out(self, number: int, call: Callable[[], Awaitable[Any]]) -> Any:
        if number == self._at:
            self.has_met = True
            await self._act()
        return await call()


@dataclass
class Scene:
    """A metadata server with the log `x`, and the ledgers that were deleted. `reader`: one that is registered."""

    server: MemoryStore
    deleted: set[int]
    reader: Consumer | None = None

    def store(self, tree: MemoryTree | None = None, now_ms: int = NOW_MS) -> LogStore:
        return LogStore(tree or self.server.session(), "/ledgers", lambda: now_ms)

    async def delete(self, ledger_id: int) -> None:
        self.deleted.add(ledger_id)

    def copied(self) -> Scene:
        return Scene(pickle.loads(pickle.dumps(self.server)), set(self.deleted), self.reader)


Operation = Callable[[Scene, LogStore], Awaitable[object]]


async def built(*, is_open: bool) -> Scene:
    """Return a log of three ledgers, a slice of a shared one, and perhaps one that is written; with attempts, a
    retention and a registered reader."""
    scene = Scene(MemoryStore(), set())
    scene.server.now_ms = NOW_MS
    await BookieRegistry(scene.server.session(), MetadataUri.parse(URI)).initialize_cluster()
    await scene.store().create("x")
    for ledger_id in (1, 2, 3):
        store = scene.store(now_ms=1_000 * ledger_id)
        await store.attempts.add("x", ledger_id, JOB)
        await store.append_ledgers("x", closed(ledger_id))
    store = scene.store(now_ms=4_000)
    await store.attempts.add("x", 4, SHARER)
    await store.append_ledgers("x", [slice_of(4, 0, 9)], shared=[4], publisher=("q1", 1))
    if is_open:
        await store.attempts.add("x", 20, SegmentOwner("writer", WRITER))
        await store.open_writer("x", 20, WRITER, [])
        await LedgerStore(scene.server.session(), MetadataUri.parse(URI)).create(METADATA, ledger_id=20)
    await store.set_retention("x", Retention(7_500, None))
    scene.reader = await store.consumers.register("x", "etl", Position(1, 2, 3), 60_000)
    for ledger_id in range(10, 18):
        await store.attempts.add("x", ledger_id, SegmentOwner("job", f"j{ledger_id}"))
    for ledger_id in (21, 22):
        await store.attempts.add("x", ledger_id, SegmentOwner("writer", OTHER))
    return scene


async def _append(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", closed(10), publisher=Publisher("q2", 1))


async def _append_again(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", closed(11), publisher=Publisher("q2", 1))


async def _append_with_schema(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", closed(12), schema=SCHEMA)


async def _append_to_empty(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", closed(13), only_if_empty=True)


async def _grow(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", [slice_of(4, 10, 19)], shared=[4], publisher=("q1", 2))


async def _grow_last(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", [slice_of(4, 10, 19)], publisher=("q1", 2))


async def _publish_routed(_: Scene, store: LogStore) -> object:
    return await RoutedCommits(store).publish([Part("x", tuple(closed(14)))], "j14", Publisher("q3", 1))


async def _overwrite(_: Scene, store: LogStore) -> object:
    return await store.replace_ledgers("x", closed(15), closed=[4])


async def _overwrite_routed(_: Scene, store: LogStore) -> object:
    async def fence(name: str) -> list[int]:
        return [4]

    return await RoutedCommits(store).publish([Part("x", tuple(closed(16)))], "j16", fence=fence)


async def _truncate(_: Scene, store: LogStore) -> object:
    return await store.truncate("x", Position(2, 3, 5), at_ledger_end=False, closed=[])


async def _truncate_to_end(_: Scene, store: LogStore) -> object:
    snapshot = await store.snapshot("x")
    is_listed = snapshot.first_ordinal <= 3 < snapshot.end_ordinal
    is_end = is_listed and (await snapshot.ledger(3)).last_entry == 9
    return await store.truncate("x", Position(3, 4, 10), at_ledger_end=is_end, closed=[])


async def _truncate_shared(_: Scene, store: LogStore) -> object:
    if (await store.snapshot("x")).end_ordinal < 5:
        return None
    return await store.truncate("x", Position.beginning(4), at_ledger_end=False, closed=[])


async def _append_what_is_discarded(_: Scene, store: LogStore) -> object:
    return await store.append_ledgers("x", closed(17))


async def _expire(scene: Scene, store: LogStore) -> object:
    return await Expiry(Client(URI, tree=store.heads.tree), store, "x", scene.delete).now()


async def _set_retention(_: Scene, store: LogStore) -> object:
    return await store.set_retention("x", Retention(None, 1))


async def _register(_: Scene, store: LogStore) -> object:
    return (await store.consumers.register("x", "slow", Position(0, 1, 0), 60_000)).position


async def _register_again(_: Scene, store: LogStore) -> object:
    return (await store.consumers.register("x", "etl", Position(0, 1, 0), 60_000)).position


async def _unregister(_: Scene, store: LogStore) -> object:
    return await store.consumers.remove("x", "etl")


async def _advance(scene: Scene, store: LogStore) -> object:
    assert scene.reader is not None
    return (await store.consumers.advance("x", scene.reader, Position(3, 4, 5))).position


async def _end_registration(scene: Scene, store: LogStore) -> object:
    assert scene.reader is not None
    await ConsumerRegistration(store.consumers, "x", scene.reader).end()
    return None


async def _discard(scene: Scene, store: LogStore) -> object:
    return await store.attempts.discard("x", lambda each, _: each.owner.owner_id == "j17", scene.delete)


async def _vacuum(scene: Scene, store: LogStore) -> object:
    await store.attempts.vacuum("x", scene.delete, created_before_ms=NOW_MS + 1)
    return None


async def _register_attempt(_: Scene, store: LogStore) -> object:
    return await store.attempts.add("x", 18, JOB)


async def _open_writer(_: Scene, store: LogStore) -> object:
    return await store.open_writer("x", 21, OTHER, [(4, SegmentFacts(20, 9, 100))])


async def _roll(_: Scene, store: LogStore) -> object:
    return await store.add_writer_ledger("x", 22, WRITER, [(4, SegmentFacts(20, 9, 100))])


async def _settle(_: Scene, store: LogStore) -> object:
    return await store.record_closed("x", WRITER, [(4, SegmentFacts(20, 9, 100))], is_end=True)


async def _delete(scene: Scene, store: LogStore) -> object:
    return await store.delete("x", scene.delete, closed=[4])


async def _create(_: Scene, store: LogStore) -> object:
    return await store.create("x", exist_ok=True)


OPERATIONS: dict[str, Operation] = {
    "append": _append,
    "append again": _append_again,
    "append with schema": _append_with_schema,
    "append to empty": _append_to_empty,
    "grow": _grow,
    "grow last": _grow_last,
    "publish routed": _publish_routed,
    "overwrite": _overwrite,
    "overwrite routed": _overwrite_routed,
    "truncate": _truncate,
    "truncate to end": _truncate_to_end,
    "truncate shared": _truncate_shared,
    "append what is discarded": _append_what_is_discarded,
    "expire": _expire,
    "set retention": _set_retention,
    "register": _register,
    "register again": _register_again,
    "unregister": _unregister,
    "advance": _advance,
    "end registration": _end_registration,
    "discard": _discard,
    "vacuum": _vacuum,
    "register attempt": _register_attempt,
    "open writer": _open_writer,
    "roll": _roll,
    "settle": _settle,
    "delete": _delete,
    "create": _create,
}


OVERLAPPING = {
    ("register", "delete"),  # the registration fails, as the log is gone before it is confirmed
    ("register again", "delete"),
    ("register again", "unregister"),  # likewise
    ("discard", "delete"),  # the deletion takes the ledgers while the other chooses them
    ("delete", "discard"),
    ("delete", "create"),  # no log is created before the deletion is complete
}
"""Pairs whose second operation may be answered in another way in the middle of the first one. The log is nevertheless
as if one came after the other."""


async def answer(operation: Operation, scene: Scene, tree: MemoryTree | None = None) -> str:
    """Return what an operation answers, or the kind of its error."""
    try:
        return repr(await operation(scene, scene.store(tree)))
    except BookKeeperError as error:
        return type(error).__name__


async def state(scene: Scene) -> dict[str, object]:
    """Return what the log is, once everything that waits for its deletion was deleted."""
    store = scene.store()
    snapshot = await store.find("x")
    if snapshot is None:
        return {"deleted": frozenset(scene.deleted), "names": tuple(await store.names())}
    await store.attempts.sweep("x", scene.delete)
    head = snapshot.head
    ledgers = [(each.ordinal, each.ledger_id, each.first_entry, each.last_entry) for each in await snapshot.ledgers()]
    listed = {ledger_id for _, ledger_id, *_ in ledgers}
    assert not listed & scene.deleted, f"listed ledgers {listed & scene.deleted} were deleted"
    return {
        "ledgers": tuple(ledgers),
        "start": head.start,
        "open": (head.open_ordinals, head.writer),
        "publishers": frozenset(head.last_epochs),
        "retention": head.retention,
        "schemas": head.schemas,
        "readers": frozenset((each.name, each.position) for each in await store.consumers.all("x")),
        "pending": frozenset(await store.attempts.pending_ids("x")),
        "deleted": frozenset(scene.deleted),
        "nodes": frozenset(await unnamed(scene)),
    }


async def unnamed(scene: Scene) -> list[str]:
    """Return nodes of times that belong to no open ledger."""
    snapshot = await scene.store().snapshot("x")
    named = {str((await snapshot.ledger(each)).ledger_id) for each in snapshot.open_ordinals}
    return [each for each in await scene.server.session().children(f"{log_path('x')}/times") if each not in named]


async def outcome(base: Scene, *names: str) -> tuple[dict[str, object], dict[str, str]]:
    """Return the state and the answers after operations one after the other."""
    scene = base.copied()
    answers = {name: await answer(OPERATIONS[name], scene) for name in names}
    return await state(scene), answers


@pytest.mark.long_except(
    *("append with schema-closed", "truncate to end-closed", "expire-open", "register again-open", "open writer-open"),
    reason="25 s of processor; these are an append, a truncation, an expiry, a registration and a writer that opens",
)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("first", OPERATIONS)
def test_operation_at_any_call_of_another_is_as_if_one_came_after_the_other(first: str, is_open: bool) -> None:
    async def test() -> None:
        base = await built(is_open=is_open)
        for second in OPERATIONS:
            if second == first:
                continue
            wanted = [await outcome(base, *names) for names in ((first, second), (second, first))]
            for at in each_call(first):
                scene, answers = base.copied(), {}

                async def act(scene: Scene = scene, answers: dict[str, str] = answers, second: str = second) -> None:
                    answers[second] = await answer(OPERATIONS[second], scene)

                tree = MeddledTree(scene.server, at, act)
                answers[first] = await answer(OPERATIONS[first], scene, tree)
                if not tree.has_met:
                    break
                found = await state(scene), answers
                if (first, second) in OVERLAPPING:
                    assert found[0] in [each for each, _ in wanted]
                else:
                    assert found in wanted, f"{second} before call {at} of {first}: {found} is neither of {wanted}"

    asyncio.run(test())


# ---- one process, interrupted ----


class Died(Exception):
    """The process has ended: none of its calls is carried out any more."""


class DyingTree(CountedTree):
    """A session whose process dies before call number `at`, or after the server has carried that out."""

    def __init__(self, server: MemoryStore, at: int, *, is_after: bool) -> None:
        super().__init__(server, session_id=1_010)
        self.is_dead = False
        self._at = at
        self._is_after = is_after

    async def carry_out(self, number: int, call: Callable[[], Awaitable[Any]]) -> Any:
        if number < self._at:
            return await call()
        if number == self._at and self._is_after:
            await call()
        self.is_dead = True
        raise Died


async def recovered(scene: Scene, name: str) -> dict[str, object]:
    """Return the state after what another process does when one has died: it vacuums the log, or deletes it again."""
    with contextlib.suppress(BookKeeperError):
        if name == "delete":
            await _delete(scene, scene.store())
        else:
            await scene.store().attempts.vacuum("x", scene.delete, created_before_ms=NOW_MS + 1)
    return await state(scene)


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_whose_process_dies_at_any_call_took_effect_or_did_not(name: str, is_after: bool) -> None:
    async def test() -> None:
        for is_open in (False, True):
            base = await built(is_open=is_open)
            done = base.copied()
            await answer(OPERATIONS[name], done)
            wanted = [await recovered(base.copied(), name), await recovered(done, name)]
            for at in each_call(name):
                scene = base.copied()
                tree = DyingTree(scene.server, at, is_after=is_after)
                with contextlib.suppress(Died):
                    await answer(OPERATIONS[name], scene, tree)
                if not tree.is_dead:
                    break
                assert await recovered(scene, name) in wanted, f"dead at call {at} of {name}"

    asyncio.run(test())


@pytest.mark.slow
@pytest.mark.parametrize("how", Interruption)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_that_is_interrupted_at_any_call_and_repeated_took_effect_once(name: str, how: Interruption) -> None:
    async def test() -> None:
        for is_open in (False, True):
            base = await built(is_open=is_open)
            done = base.copied()
            await answer(OPERATIONS[name], done)
            wanted = await recovered(done, name)
            for at in each_call(name):
                scene = base.copied()
                tree = InterruptedTree(scene.server, at, how)
                with contextlib.suppress(BookKeeperError):
                    await surely(lambda scene=scene, tree=tree: OPERATIONS[name](scene, scene.store(tree)))
                if tree.struck is None:
                    break
                # What it could not tidy up is left to a vacuum.
                assert await recovered(scene, name) == wanted, f"{how} at call {at} of {name}"

    asyncio.run(test())
