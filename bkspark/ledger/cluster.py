"""Cluster: create, open, recover, delete and list ledgers of one cluster."""

from __future__ import annotations

import hmac
import random
import secrets
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Self

from bkspark.core.last_confirmed import LastEntries
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.pipeline import WriterStart
from bkspark.core.placement import choose_ensemble
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ClientClosed, ConfigurationError, NoSuchLedger, UnauthorizedAccess
from bkspark.ids import DIGESTS
from bkspark.ledger import arguments
from bkspark.ledger.bookies import BookieWatcher, PlacementOptions
from bkspark.ledger.context import ClientContext
from bkspark.ledger.encryption import NO_KEYS, EncryptionOptions
from bkspark.ledger.ledger_types import add_flags, check_relaxed, durability_of, parse_ledger_type, type_metadata
from bkspark.ledger.reader import NO_VERSION, LedgerReader, LedgerTimes, last_entries
from bkspark.ledger.recovery import recover
from bkspark.ledger.writer import LedgerWriter
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.tree import Tree
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.metrics import measured
from bkspark.net.pool import BookiePool, NetOptions
from bkspark.tasks import SharedAttempts
from bkspark.tracing import traced
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.encrypted_entries import RECORD_KEY


def parse_digest(name: str) -> DigestType:
    """Return the digest type of `crc32c`, `crc32`, `mac` or `dummy`, in any case.

    Raises:
        ConfigurationError: another name.
    """
    try:
        return DigestType[name.upper()]
    except (KeyError, AttributeError):
        raise ConfigurationError(f"digest {name!r} is not one of {', '.join(DIGESTS)}") from None


def _create_facts(cluster: Cluster, **options: Any) -> dict[str, str | int]:
    """Return the attributes of a creation's span: those quorum options that the caller gave."""
    names = ("ensemble", "write_quorum", "ack_quorum")
    return {name: options[name] for name in names if isinstance(options.get(name), int)}


def _ledger_facts(cluster: Cluster, ledger_id: object, **options: object) -> dict[str, str | int]:
    return {"ledger": ledger_id} if isinstance(ledger_id, int) else {}


def _recovery_facts(cluster: Cluster, context: ClientContext, ledger_id: int, wanted: object) -> dict[str, str | int]:
    return {"ledger": ledger_id}


def _writer_facts(writer: LedgerWriter) -> dict[str, str | int]:
    return {"ledger": writer.ledger_id}


def _reader_facts(reader: LedgerReader) -> dict[str, str | int]:
    return {"last_entry": reader.last_entry}


def _end_facts(metadata: LedgerMetadata) -> dict[str, str | int]:
    return {"last_entry": metadata.last_entry}


def _check_identity(ledger_id: int, metadata: LedgerMetadata, wanted: Mapping[str, bytes]) -> None:
    """Raise NoSuchLedger unless metadata have the wanted custom metadata: a ledger keeps those of its creation."""
    lacking = [name for name, value in wanted.items() if metadata.custom_metadata.get(name) != value]
    if lacking:
        error = NoSuchLedger(
            f"ledger {ledger_id} is another ledger, which was created with the id of the expected one: its custom "
            f"metadata differ in {', '.join(lacking)}",
            ledger_id=ledger_id,
        )
        error.is_replaced = True
        raise error


class Cluster:
    """A connection to one cluster: its metadata store and, on demand, its bookies.

    Args:
        uri: metadata URI, as `zk://host:2181;host2:2181/ledgers`.
        digest: digest type of new ledgers: crc32c, crc32, mac or dummy. An existing ledger is read with its own.
        password: the password of every ledger created or opened here.
        wire_protocol: v2 or v3, for adds and reads. V2 costs less and has batch reads; requests that V2 lacks always
            use V3.
        net: time-outs and limits of connections.
        writer: time-outs and limits of writers.
        placement: how bookies are chosen for new ledgers and to replace failed ones.
        zookeeper: TLS and login of the connection to ZooKeeper, and who may use the nodes that are created.
        encryption: the keys that new ledgers are encrypted with, and encrypted ledgers are read with.
        tree: the metadata store to use, instead of connecting to the URI's hosts; closed with the client.
    """

    def __init__(
        self,
        uri: str,
        *,
        digest: str = "crc32c",
        password: bytes = b"",
        wire_protocol: str = "v2",
        net: NetOptions = NetOptions(),
        writer: WriterOptions = WriterOptions(),
        placement: PlacementOptions = PlacementOptions(),
        zookeeper: ZooKeeperOptions = ZooKeeperOptions(),
        encryption: EncryptionOptions = NO_KEYS,
        tree: Tree | None = None,
    ) -> None:
        self.uri = MetadataUri.parse(uri)
        self._digest = parse_digest(digest)
        if not isinstance(password, (bytes, bytearray)):
            raise ConfigurationError(f"password must be bytes, not {type(password).__name__}")
        self._password = bytes(password)
        self._protocol = WireProtocol.parse(wire_protocol)
        for name, given, kind in (
            ("net", net, NetOptions),
            ("writer", writer, WriterOptions),
            ("placement", placement, PlacementOptions),
            ("zookeeper", zookeeper, ZooKeeperOptions),
            ("encryption", encryption, EncryptionOptions),
        ):
            arguments.instance(name, given, kind)
        if tree is not None:
            arguments.instance("tree", tree, Tree)
        self._net = net
        self._writer_options = writer
        self._placement = placement
        self._zookeeper = zookeeper
        self._encryption = encryption
        self._tree = tree
        """The connection to the metadata store: the caller's, or opened by the first call that needs it. None after
        `close`."""
        self._context: ClientContext | None = None
        """What writers, readers and recoveries share. None before the first call that needs it, and after `close`."""
        self._connecting = SharedAttempts()
        """Attempts to make `_context`, which is made once."""
        self._is_closed = False
        """Whether `close` was called. Set once."""

    # ---- connecting ----

    async def connect(self) -> Self:
        """Connect to the metadata store if there is no connection yet; every other call does this, too.

        Raises:
            MetadataError: the store cannot be reached; the message has its address.
            ClientClosed: `close` was called.
        """
        await self.context()
        return self

    async def context(self) -> ClientContext:
        """Return what writers, readers and recoveries share: the metadata stores and the connections. Raises as
        `connect`."""
        if self._context is not None:
            return self._context
        async with self._connecting.attempt():
            if self._is_closed:
                raise ClientClosed(f"the client of {self.uri} is closed: make another one")
            if self._context is not None:
                return self._context
            if self._tree is None:
                self._tree = await open_tree(self.uri, self._zookeeper)
            registry = BookieRegistry(self._tree, self.uri)
            pool = BookiePool(registry.resolve, self._net, self._protocol, asks_again=True)
            self._context = ClientContext(
                LedgerStore(self._tree, self.uri),
                registry,
                pool,
                BookieWatcher(registry, self._placement, lambda: pool.avoided),
                random.Random(secrets.randbits(64)),
            )
        return self._context

    async def close(self) -> None:
        """Drop every connection. Ledgers that were not closed stay open; every later call raises ClientClosed."""
        async with self._connecting.lock:
            self._is_closed = True
            context, self._context = self._context, None
            tree, self._tree = self._tree, None
            try:
                if context is not None:
                    await context.pool.close()
            finally:
                # Also if this call is cancelled: nothing else refers to the connections now.
                if tree is not None:
                    await tree.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def tree(self) -> Tree:
        """Return the connected metadata store, in which higher layers keep their nodes."""
        await self.context()
        assert self._tree is not None
        return self._tree

    @property
    def encryption(self) -> EncryptionOptions:
        """The keys that new ledgers are encrypted with, and encrypted ledgers are read with."""
        return self._encryption

    # ---- ledgers ----

    @measured("create")
    @traced("bookkeeper.create", _create_facts, _writer_facts)
    async def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        ledger_type: str = "PD_JOURNAL",
        relaxed: RelaxedDurability = RelaxedDurability(),
        metadata: Mapping[str, bytes | str] | None = None,
        ledger_id: int | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer. No bookie is contacted before the first append.

        Args:
            ledger_type: PD_JOURNAL: an acknowledged entry is durable. VD_JOURNAL or VD_BYPASS_JOURNAL: it is durable
                after `sync` or `close`, and the LAC covers only durable entries (docs/relaxed-durability.md).
            relaxed: for the VD types: what happens when a bookie is lost, and whether E > Qw is allowed.
            metadata: custom metadata, stored with the ledger; text is stored as UTF-8.
            ledger_id: the ledger's id; None: one is generated.

        Raises:
            ConfigurationError: E >= Qw >= Qa >= 1 does not hold, the ledger type is unknown, or `relaxed` or the
                quorums do not fit it; or the key file of `encryption` cannot be used.
            NotEnoughBookies: fewer writable bookies than `ensemble`; nothing was created.
            LedgerExists: `ledger_id` is taken.
        """
        ensemble, write_quorum, ack_quorum = arguments.quorums(ensemble, write_quorum, ack_quorum)
        custom = arguments.custom_metadata(metadata)
        if ledger_id is not None:
            ledger_id = arguments.whole_number("ledger_id", ledger_id)
        type_ = parse_ledger_type(ledger_type)
        check_relaxed(type_, relaxed, ensemble, write_quorum)
        custom = type_metadata(type_, custom)
        if RECORD_KEY in custom:
            raise ConfigurationError(f"metadata: the name {RECORD_KEY!r} is used by encryption: choose another one")
        ledger_key = self._encryption.new_ledger()
        if ledger_key is not None:
            custom = {**custom, RECORD_KEY: ledger_key.record}
        context = await self.context()
        found = await context.watcher.candidates(ensemble)
        bookies = choose_ensemble(found.writable, ensemble, write_quorum, context.random, found.topology)
        created, stored = await context.ledgers.create(
            LedgerMetadata(
                ensemble_size=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                fragments=(Fragment(0, bookies),),
                digest=self._digest,
                password=self._password,
                custom_metadata=custom,
            ),
            ledger_id=ledger_id,
        )
        options, durability = self._writer_options, durability_of(type_, relaxed)
        start = WriterStart(created, stored.metadata, stored.version)
        core = WriterCore(start, context.random, options, relaxed=durability)
        sealer = None if ledger_key is None else ledger_key.sealer(created)
        return LedgerWriter(context, core, self._password, options, flags=add_flags(type_), encryption=sealer)

    @measured("open")
    @traced("bookkeeper.open", _ledger_facts, _reader_facts)
    async def open(
        self, ledger_id: int, *, recover: bool = False, having: Mapping[str, bytes | str] | None = None
    ) -> LedgerReader:
        """Return a reader of a ledger.

        Args:
            recover: True: fence the ledger, find its end and close it; its writer can add nothing more. False: never
                fence, and read up to the LAC.
            having: custom metadata by which the ledger is known. One that lacks them was created under the id after
                the wanted ledger was deleted; nothing is done to it.

        Raises:
            NoSuchLedger: it does not exist, or is another one by `having`.
            UnauthorizedAccess: the password is wrong.
            LedgerRecoveryFailed, ReadFailed: too few bookies answered.

        If the ledger is encrypted and its key is missing, only reads of entries raise DecryptionFailed: metadata and
        recovery need no key.
        """
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        recover = arguments.flag("recover", recover)
        wanted = arguments.custom_metadata(having, "having")
        context = await self.context()
        stored = await context.ledgers.read(ledger_id)
        metadata, last, version = stored.metadata, LastEntries(), stored.version
        _check_identity(ledger_id, metadata, wanted)
        self._check_password(ledger_id, metadata)
        times = LedgerTimes.of(stored)
        if not metadata.is_closed:
            if recover:
                metadata, version = await self._recover(context, ledger_id, wanted), NO_VERSION
            else:
                digest = EntryDigest(metadata.digest, self._password, metadata.lac_bounds)
                last = await last_entries(context.pool, ledger_id, metadata, digest)
        return LedgerReader(context, ledger_id, metadata, self._password, last, times, self._encryption, version)

    async def recover(self, ledger_id: int, *, having: Mapping[str, bytes | str] | None = None) -> LedgerMetadata:
        """Fence a ledger, find its end and close it; return its closed metadata. Takes `having` and raises as `open`.

        Recovery reads on as long as bookies return another entry: the protocol sets no limit. If bookies are not
        trusted, use `asyncio.timeout`; a cancelled recovery leaves the ledger IN_RECOVERY, and can be repeated.
        """
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        wanted = arguments.custom_metadata(having, "having")
        context = await self.context()
        return await self._recover(context, ledger_id, wanted)

    @measured("recover")
    @traced("bookkeeper.recover", _recovery_facts, _end_facts)
    async def _recover(self, context: ClientContext, ledger_id: int, wanted: Mapping[str, bytes]) -> LedgerMetadata:
        stored = await context.ledgers.read(ledger_id)
        _check_identity(ledger_id, stored.metadata, wanted)
        self._check_password(ledger_id, stored.metadata)
        if stored.metadata.state is LedgerState.CLOSED:
            return stored.metadata
        return await recover(context, ledger_id, stored, self._password, self._writer_options)

    async def metadata(self, ledger_id: int, *, having: Mapping[str, bytes | str] | None = None) -> LedgerMetadata:
        """Return a ledger's metadata.

        Args:
            having: as of `open`.

        Raises:
            NoSuchLedger: it does not exist, or is another one by `having`.
        """
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        wanted = arguments.custom_metadata(having, "having")
        context = await self.context()
        stored = await context.ledgers.read(ledger_id)
        _check_identity(ledger_id, stored.metadata, wanted)
        return stored.metadata

    async def ledgers(self) -> AsyncIterator[int]:
        """Yield the id of every ledger, ascending."""
        context = await self.context()
        async for ledger_id in context.ledgers.ids():
            yield ledger_id

    @measured("delete")
    async def delete(self, ledger_id: int, *, having: Mapping[str, bytes | str] | None = None) -> None:
        """Delete a ledger's metadata; bookies drop its entries later.

        Args:
            having: as of `open`. The metadata are read first, and deleted only in the version that was read.

        Raises:
            NoSuchLedger: it does not exist, or is another one by `having`.
            MetadataVersion: with `having`: others changed the metadata again and again.
        """
        ledger_id = arguments.whole_number("ledger_id", ledger_id)
        wanted = arguments.custom_metadata(having, "having")
        context = await self.context()
        if wanted:
            check = partial(_check_identity, ledger_id, wanted=wanted)
            await context.ledgers.delete_checked(ledger_id, check)
        else:
            await context.ledgers.delete(ledger_id)

    def _check_password(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        # None: metadata of format 1, which do not contain the password. Then the bookies check it.
        if metadata.password is not None and not hmac.compare_digest(metadata.password, self._password):
            raise UnauthorizedAccess(
                f"the password does not open ledger {ledger_id}: give the one it was created with", ledger_id=ledger_id
            )
