"""Which errors of the metadata store a client waits out, and how it goes on then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bkspark import errors
from bkspark.core import effects
from bkspark.errors import BookKeeperError, MetadataError, NoSuchLedger
from bkspark.ledger.metadata_steps import is_away, may_pass, write_metadata
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from tests.ledger.fanning import LEDGER, FannedWriter, play
from tests.ledger.in_process import URI

OUTAGES = {"MetadataError", "SessionExpired"}
PASSING = OUTAGES | {"ReadFailed", "BookieUnavailable", "RequestTimeout", "TooManyRequests"}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BookKeeperError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_waits_for_a_store_that_is_away_and_takes_its_answers_as_they_are(kind: type[BookKeeperError]) -> None:
    assert is_away(kind("it failed")) is (kind.__name__ in OUTAGES)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_follower_bears_what_may_be_over_later(kind: type[BookKeeperError]) -> None:
    is_special = any(issubclass(kind, getattr(errors, name)) for name in PASSING - OUTAGES)
    assert may_pass(kind("it failed")) is (kind.__name__ in OUTAGES or is_special)


def test_a_new_kind_of_outage_is_waited_out_too() -> None:
    class StoreIsBusy(MetadataError):
        pass

    assert is_away(StoreIsBusy("try again"))


class AwayOnce(MemoryTree):
    """A session whose store is away once, at the second read after a write: the first tells that the write has lost."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.writes = self.reads = 0

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        self.writes += 1
        return await super().set(path, data, version)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads += self.writes > 0
        if self.reads == 2:
            raise MetadataError("ZooKeeper did not answer")
        return await super().get(path)


def test_compare_and_set_that_lost_is_taken_up_again_when_the_store_has_come_back() -> None:
    """Z5: the ledger was changed by another client, and the store is away when the writer reads the change."""
    asked: list[int] = []

    async def test() -> None:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        await BookieRegistry(store.session(), uri).initialize_cluster()
        other, ledgers = LedgerStore(store.session(), uri), LedgerStore(tree := AwayOnce(store), uri)
        writer = FannedWriter()
        await other.create(writer.core.metadata, ledger_id=LEDGER)
        stored = await other.read(LEDGER)
        changed = replace(stored.metadata, custom_metadata={"who": b"another"})
        await other.write(LEDGER, changed, stored.version)

        async def has_patience() -> bool:
            asked.append(tree.reads)
            return True

        writer.add()
        writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
        (write,) = writer.core.on_writable_bookies(["b", "c", "d"])
        assert isinstance(write, effects.WriteMetadata)
        todo = await write_metadata(ledgers, writer.core, LEDGER, write, has_patience)
        assert (asked, tree.writes) == ([2], 2)
        assert [type(effect) for effect in todo] == [effects.FindBookies]
        (again,) = writer.core.on_writable_bookies(["b", "c", "d"])
        assert isinstance(again, effects.WriteMetadata)
        assert (again.expected_version, again.metadata.custom_metadata) == (1, {"who": b"another"})
        assert again.metadata.last_fragment.bookies == ("d", "b", "c")

    play(test)


class ReplacedBeforeARead(MemoryTree):
    """A session before whose second read after a write a ledger is deleted, and created again under its id."""

    def __init__(self, store: MemoryStore, replace_ledger: Callable[[], Awaitable[None]]) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self._replace_ledger = replace_ledger
        self._reads = -1

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        self._reads = 0
        return await super().set(path, data, version)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self._reads += self._reads >= 0
        if self._reads == 2:
            await self._replace_ledger()
        return await super().get(path)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the write", "after the write has lost"])
def test_change_that_lost_is_not_made_to_another_ledger_under_the_same_id(*, is_late: bool) -> None:
    """The other ledger may look like the one whose writer stood still. Its version tells them apart only by chance."""

    async def test() -> None:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        await BookieRegistry(store.session(), uri).initialize_cluster()
        other = LedgerStore(store.session(), uri)
        writer = FannedWriter()

        async def change() -> None:
            stored = await other.read(LEDGER)
            changed = replace(stored.metadata, custom_metadata={"who": b"another"})
            await other.write(LEDGER, changed, stored.version)

        async def replace_ledger() -> None:
            await other.delete(LEDGER)
            await other.create(writer.core.metadata, ledger_id=LEDGER)
            await change()

        await other.create(writer.core.metadata, ledger_id=LEDGER)
        await change()
        if is_late:
            await change()
        writer.core._pipeline.metadata = (stored := await other.read(LEDGER)).metadata
        writer.core._pipeline.version = stored.version - is_late
        tree: MemoryTree = store.session()
        if is_late:
            tree = ReplacedBeforeARead(store, replace_ledger)
        else:
            await replace_ledger()
        writer.add()
        writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
        (write,) = writer.core.on_writable_bookies(["b", "c", "d"])
        assert isinstance(write, effects.WriteMetadata)
        await write_metadata(LedgerStore(tree, uri), writer.core, LEDGER, write)
        assert isinstance(writer.core.error, NoSuchLedger)
        now = await other.read(LEDGER)
        assert (now.version, now.metadata.fragments) == (1, stored.metadata.fragments)

    play(test)


def test_answer_of_the_store_that_is_final_is_not_waited_out() -> None:
    """The ledger was deleted: it will not come back."""

    async def test() -> None:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        await BookieRegistry(store.session(), uri).initialize_cluster()
        writer = FannedWriter()
        writer.add()
        writer.perform(writer.core.on_bookie_failed(0, "a", writer.now_ns()))
        (write,) = writer.core.on_writable_bookies(["b", "c", "d"])
        assert isinstance(write, effects.WriteMetadata)

        async def has_patience() -> bool:
            raise AssertionError("it is not asked")

        await write_metadata(LedgerStore(store.session(), uri), writer.core, LEDGER, write, has_patience)
        assert isinstance(writer.core.error, NoSuchLedger)

    play(test)
