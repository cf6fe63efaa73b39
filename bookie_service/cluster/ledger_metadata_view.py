"""What the metadata store says about ledgers. It answers the two questions of `gc_policy`, and never guesses.

Any failure raises. A changed instance id means that the metadata belong to another cluster, or are being restored.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import numpy as np

from bkspark.errors import MetadataError, MetadataFormat, NoSuchLedger
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.tree import Tree
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bkspark.security.authorization import LedgerFacts
from bkspark.tasks import each_of
from bkspark.wire.digest import master_key
from bookie_service.cluster.ledger_shares import HeldShare, LedgerShare, is_elsewhere

READS_AT_ONCE = 64


class LedgerMetadataView:
    """Queries ledger metadata for one bookie."""

    def __init__(self, tree: Tree, uri: MetadataUri, bookie_id: str) -> None:
        self._tree = tree
        self._ledgers = LedgerStore(tree, uri)
        """The metadata of ledgers in the cluster's metadata store. Constant."""
        self._registry = BookieRegistry(tree, uri)
        self._underreplicated = UnderreplicationStore(tree, uri)
        """The list of underreplicated ledgers, to which `report` adds, and the locks of ledgers. Constant."""
        self._is_list_prepared = False
        """Whether the nodes that `report` needs exist. Set once."""
        self._bookie_id = bookie_id
        self._instance_id: str | None = None
        """The cluster's instance id when this bookie started; None: it had none. Set by `open`."""
        self._is_open = False
        """Whether the instance id was read. Set once, by `open`."""

    async def open(self) -> None:
        """Remember which cluster this is. Raises MetadataError."""
        self._instance_id = await self._registry.instance_id()
        self._is_open = True

    async def catch_up(self) -> None:
        """Return when the session sees everything that any client wrote before the call. Raises MetadataError."""
        await self._tree.catch_up()

    async def listed(self) -> AsyncIterator[np.ndarray]:
        """Yield the ids of all ledgers, ascending, in int64 arrays of at most 10,000.

        Raises:
            MetadataError: the listing could not be finished.
        """
        await self._check_instance()
        async for page in self._ledgers.pages():
            yield page
        await self._check_instance()

    async def ledgers_on_bookie(self) -> list[int]:
        """Return all ledgers that have this bookie in any ensemble, and those whose metadata cannot be read.

        Raises:
            BookKeeperError: the store failed; nothing is known.
        """
        found = []
        async for page in self.listed():
            ledger_ids = page.tolist()
            named = await each_of(self._is_named, ledger_ids, READS_AT_ONCE)
            found += [ledger_id for ledger_id, is_named in zip(ledger_ids, named) if is_named]
        return found

    async def _is_named(self, ledger_id: int) -> bool:
        try:
            metadata = (await self._ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            return False
        except MetadataFormat:
            return True
        return any(self._bookie_id in fragment.bookies for fragment in metadata.fragments)

    async def share(self, ledger_id: int) -> LedgerShare:
        """Return what this bookie must hold of a ledger; nothing if it is deleted or its metadata cannot be read.

        Raises:
            BookKeeperError: the store failed; nothing is known.
        """
        try:
            metadata = (await self._ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            # The server that answered may lag behind.
            if await self._is_deleted_for_certain(ledger_id):
                return LedgerShare((), is_deleted=True)
            return LedgerShare((), is_closed=False)
        except MetadataFormat:
            return LedgerShare((), is_closed=False)
        # Fragments that receive no more entries, and the end of each.
        ends = [fragment.first_entry for fragment in metadata.fragments[1:]]
        if metadata.is_closed:
            ends.append(metadata.last_entry + 1)
        return LedgerShare(
            tuple(
                HeldShare(
                    fragment.first_entry,
                    end,
                    fragment.bookies.index(self._bookie_id),
                    len(fragment.bookies),
                    metadata.write_quorum,
                )
                for fragment, end in zip(metadata.fragments, ends)
                if self._bookie_id in fragment.bookies
            ),
            metadata.is_closed,
        )

    async def facts(self, ledger_id: int, on_answer: Callable[[], None] = lambda: None) -> LedgerFacts | None:
        """Return the facts of a ledger that authorization rules use; None: it certainly does not exist.

        `on_answer()` is called after each answer of the store but the last one.

        Raises:
            BookKeeperError: the store failed, or the stored metadata cannot be read; nothing is known.
        """
        if ledger_id < 0:
            return None
        try:
            try:
                metadata = (await self._ledgers.read(ledger_id)).metadata
            except NoSuchLedger:
                on_answer()
                # The server that answered may lag behind.
                await self.catch_up()
                on_answer()
                metadata = (await self._ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            return None
        password = metadata.password
        return LedgerFacts.of(ledger_id, metadata.custom_metadata, None if password is None else master_key(password))

    async def ping(self) -> None:
        """Return when the store has answered a small read. Raises BookKeeperError: it failed."""
        await self._registry.instance_id()

    async def _is_deleted_for_certain(self, ledger_id: int) -> bool:
        await self.catch_up()
        return await self.is_deleted(ledger_id)

    async def report(self, ledger_id: int, now_ms: int) -> None:
        """List a ledger as under-replicated at this bookie, so that autorecovery copies its entries again.

        Raises:
            BookKeeperError: the store failed.
        """
        if not self._is_list_prepared:
            await self._underreplicated.prepare()
            self._is_list_prepared = True
        await self._underreplicated.mark(ledger_id, [self._bookie_id], now_ms)

    async def is_deleted(self, ledger_id: int) -> bool:
        """Return whether a direct read says that a ledger does not exist.

        Raises:
            BookKeeperError: the store failed, or the stored metadata cannot be read; nothing is known.
        """
        try:
            await self._ledgers.read(ledger_id)
        except NoSuchLedger:
            await self._check_instance()
            return True
        return False

    @contextlib.asynccontextmanager
    async def elsewhere(self, ledger_id: int) -> AsyncIterator[bool]:
        """Yield whether only other bookies certainly hold a ledger. No process repairs it inside the context.

        Raises:
            BookKeeperError: the store failed; nothing is known.
        """
        # One read suffices for nearly all ledgers. Only candidates for deletion need a lock and a second read.
        if not await self._is_elsewhere(ledger_id):
            yield False
            return
        if not await self._underreplicated.lock(ledger_id, self._bookie_id):
            yield False
            return
        try:
            yield not await self._underreplicated.is_listed(ledger_id) and await self._is_elsewhere(ledger_id)
        finally:
            # If the lock cannot be removed now, the next `lock` finds that it is this session's own.
            with contextlib.suppress(MetadataError):
                await self._underreplicated.unlock(ledger_id)

    async def _is_elsewhere(self, ledger_id: int) -> bool:
        try:
            metadata = (await self._ledgers.read(ledger_id)).metadata
        except NoSuchLedger:
            return False  # it is deleted, which needs the other proof
        except MetadataFormat:
            return False
        ensembles = (fragment.bookies for fragment in metadata.fragments)
        return is_elsewhere(metadata.is_closed, ensembles, self._bookie_id)

    async def _check_instance(self) -> None:
        found = await self._registry.instance_id()
        if not self._is_open or found != self._instance_id:
            raise MetadataError(
                f"the cluster's instance id is {found}, it was {self._instance_id} when this bookie started"
            )
