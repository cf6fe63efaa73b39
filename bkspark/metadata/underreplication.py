"""The under-replication tree, in Apache's layout: which ledgers lack copies, which process repairs them, and whether
repairs are enabled.

    underreplication                            empty
    underreplication/LAYOUT                     text: `type: "BASIC"`, `version: 1`
    underreplication/ledgers/hhhh/hhhh/hhhh/hhhh/urL%010d
                                                text, UnderreplicatedLedgerFormat: a `replica` for each bookie whose
                                                copies are missing, `ctime` in ms; the four levels are the id's bits
                                                63-48, 47-32, 31-16 and 15-0
    underreplication/locks/urL%010d             ephemeral; text, LockDataFormat: the process that repairs (or drops)
    this ledger
    underreplication/disable                    empty; while it exists no process audits or repairs
    underreplication/lostBookieRecoveryDelay    text, decimal seconds; overrides every process's configuration
    underreplication/checkallledgersctime       binary, CheckAllLedgersFormat: when all ledgers were checked last

A ledger stays listed until a worker has found it complete: `finish` deletes the node in the version from the start of
the work, so that a copy reported missing meanwhile is not forgotten.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from bkspark.errors import MetadataError, MetadataFormat, MetadataVersion, NodeExists, NoSuchNode
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata import paths
from bkspark.metadata.dataformats_pb2 import (
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from bkspark.metadata.ledgers import read_manager
from bkspark.metadata.tree import Callback, Tree, parent_of
from bkspark.metadata.uri import MetadataUri

LAYOUT_TYPE, LAYOUT_VERSION = "BASIC", 1
MARK_TRIES_MAX = 64
"""Attempts of a `mark` while others change the same ledger's node."""

_LEVEL = re.compile("[0-9a-f]{4}")
_LEAF = re.compile(r"urL(\d{10,19})")
_LEVELS = 4
DELAY_S_MAX = 10**9 - 1
"""The longest lostBookieRecoveryDelay. Apache's auditors read it as a Java int."""
_SECONDS = re.compile(rb"-?\d{1,9}")


@dataclass(frozen=True, slots=True)
class Underreplicated:
    """A listed ledger: the bookies whose copies are missing, the node's version, and since when it is listed
    (`ctime_ms`), if that is known."""

    ledger_id: int
    missing: tuple[str, ...]
    version: int
    ctime_ms: int | None


@dataclass(frozen=True, slots=True)
class RecoveryDelay:
    """The delay that an operator set, in seconds. The version distinguishes one write from the next, even with the same
    value."""

    seconds: int
    version: int


def encode(missing: Iterable[str], ctime_ms: int | None) -> bytes:
    """Return a node's text.

    >>> encode(["10.0.0.1:3181"], 17)
    b'replica: "10.0.0.1:3181"\\nctime: 17\\n'
    """
    message = UnderreplicatedLedgerFormat(replica=missing)
    if ctime_ms is not None:
        message.ctime = ctime_ms
    return text_format.MessageToString(message).encode()


def decode(data: bytes, ledger_id: int, version: int = 0) -> Underreplicated:
    """Return the contents of a node. Raises MetadataFormat."""
    try:
        message = text_format.Parse(data.decode(), UnderreplicatedLedgerFormat(), allow_unknown_field=True)
    except (ValueError, RecursionError, text_format.ParseError) as error:
        # protobuf skips unknown fields by recursion, as deep as they are nested.
        raise MetadataFormat(
            f"the under-replication node of ledger {ledger_id} cannot be read: {error}", ledger_id=ledger_id
        ) from None
    ctime_ms = message.ctime if message.HasField("ctime") else None
    return Underreplicated(ledger_id, tuple(message.replica), version, ctime_ms)


def lock_text(bookie_id: str) -> bytes:
    """Return the contents of a lock's node."""
    return text_format.MessageToString(LockDataFormat(bookieId=bookie_id)).encode()


class PeriodicCheck(Enum):
    """A check that auditors carry out at intervals. Only Apache's auditors have the second and the third."""

    ALL_LEDGERS = "the check of all ledgers"
    PLACEMENT = "the check of placement"
    REPLICAS = "the check of replicas"

    @property
    def name_of_node(self) -> str:
        return {
            PeriodicCheck.ALL_LEDGERS: "checkallledgersctime",
            PeriodicCheck.PLACEMENT: "placementpolicycheckctime",
            PeriodicCheck.REPLICAS: "replicascheckctime",
        }[self]


class UnderreplicationStore:
    """Lists, marks, locks and releases under-replicated ledgers. Any failure of the store raises MetadataError."""

    def __init__(self, tree: Tree, uri: MetadataUri) -> None:
        self._tree = tree
        self._uri = uri
        self._root = f"{uri.root}/{paths.UNDERREPLICATION}"
        self._locked: set[int] = set()
        """Ledgers that this process has locked."""

    async def prepare(self) -> None:
        """Create the top nodes, as Apache's peers expect them.

        Raises:
            MetadataError: there is no cluster at the root, or the tree is of another layout.
        """
        await read_manager(self._tree, self._uri.root, self._uri.manager)
        expected = LedgerRereplicationLayoutFormat(type=LAYOUT_TYPE, version=LAYOUT_VERSION)
        for name, data in (
            ("", b""),
            ("/LAYOUT", text_format.MessageToString(expected).encode()),
            ("/ledgers", b""),
            ("/locks", b""),
        ):
            with contextlib.suppress(NodeExists):
                await self._tree.create(self._root + name, data)
        data, _ = await self._tree.get(f"{self._root}/LAYOUT")
        try:
            found = text_format.Parse(data.decode(), LedgerRereplicationLayoutFormat())
        except (ValueError, text_format.ParseError) as error:
            raise MetadataFormat(f"{self._root}/LAYOUT cannot be read: {error}") from None
        if (found.type, found.version) != (LAYOUT_TYPE, LAYOUT_VERSION):
            raise MetadataError.answer(
                f"{self._root} has layout {found.type} version {found.version}; known is {LAYOUT_TYPE} version "
                f"{LAYOUT_VERSION}: repair this cluster with the tools that made it"
            )

    # ---- the list ----

    def _leaf(self, ledger_id: int) -> str:
        return f"{self._root}/ledgers/{paths.underreplication_path(ledger_id)}"

    async def mark(self, ledger_id: int, missing: Sequence[str], now_ms: int) -> None:
        """List a ledger, or add bookies, at least one, to its listing. Unreadable contents are replaced. A repair in
        progress leaves the ledger listed.

        Raises:
            MetadataError: the store failed, or others kept changing the node.
        """
        path = self._leaf(ledger_id)
        for _ in range(MARK_TRIES_MAX):
            try:
                await self._tree.create(path, encode(missing, now_ms), make_parents=True)
                return
            except NodeExists:
                pass
            except NoSuchNode:
                continue  # another process removed an empty parent at this moment
            try:
                data, stat = await self._tree.get(path)
                try:
                    known = decode(data, ledger_id)
                except MetadataFormat:
                    known = Underreplicated(ledger_id, (), stat.version, now_ms)
                added = [bookie for bookie in missing if bookie not in known.missing]
                # During a repair the node gets another version even if no bookie is new: the repair may have looked at
                # the copies of this bookie before they were lost again.
                if added or await self._tree.exists(self._lock(ledger_id)) is not None:
                    await self._tree.set(path, encode([*known.missing, *added], known.ctime_ms), stat.version)
                return
            except (NoSuchNode, MetadataVersion):
                continue
        raise MetadataError(f"ledger {ledger_id} could not be listed: its node {path} keeps changing")

    async def find(self, ledger_id: int) -> Underreplicated | None:
        """Return the listing of a ledger, or None."""
        try:
            data, stat = await self._tree.get(self._leaf(ledger_id))
        except NoSuchNode:
            return None
        return decode(data, ledger_id, stat.version)

    async def is_listed(self, ledger_id: int) -> bool:
        """Return whether a ledger is listed, even if its listing cannot be read."""
        return await self._tree.exists(self._leaf(ledger_id)) is not None

    async def ids(self) -> AsyncIterator[int]:
        """Yield the id of every listed ledger, ascending."""
        stack = [(f"{self._root}/ledgers", 0)]
        while stack:
            path, depth = stack.pop()
            try:
                names = await self._tree.children(path)
            except NoSuchNode:
                continue
            if depth < _LEVELS:
                stack += [(f"{path}/{name}", depth + 1) for name in reversed(names) if _LEVEL.fullmatch(name)]
                continue
            for name in names:
                leaf = _LEAF.fullmatch(name)
                if leaf is not None and int(leaf[1]) <= LEDGER_ID_MAX:
                    yield int(leaf[1])

    async def groups(self, size: int) -> AsyncIterator[list[int]]:
        """Yield the ids of all listed ledgers, ascending, `size` at a time; the last group may be smaller."""
        group: list[int] = []
        async for ledger_id in self.ids():
            group.append(ledger_id)
            if len(group) == size:
                yield group
                group = []
        if group:
            yield group

    async def count(self) -> int:
        """Return how many ledgers are listed. Raises MetadataError."""
        found = 0
        async for _ in self.ids():
            found += 1
        return found

    async def is_empty(self) -> bool:
        """Return whether no ledger is listed. Raises MetadataError."""
        async for _ in self.ids():
            return False
        return True

    async def watch(self, callback: Callback) -> Callback:
        """Call `callback()` when the top level of the list may have grown; deeper changes are not reported."""
        return await self._tree.watch_children(f"{self._root}/ledgers", callback)

    # ---- work ----

    def _lock(self, ledger_id: int) -> str:
        return f"{self._root}/locks/urL{ledger_id:010d}"

    async def lock(self, ledger_id: int, who: str) -> bool:
        """Take a ledger's lock until `unlock` or the end of the session; return False if another session has it.

        A lock of this session that this object did not record is its own, too: the answer that created it was lost.
        """
        path = self._lock(ledger_id)
        try:
            await self._tree.create(path, lock_text(who), ephemeral=True, make_parents=True)
        except NodeExists:
            stat = await self._tree.exists(path)
            if ledger_id in self._locked or stat is None or stat.session_owner != self._tree.session_id:
                return False
        self._locked.add(ledger_id)
        return True

    async def locked(self) -> set[int]:
        """Return the locked ledgers."""
        try:
            names = await self._tree.children(f"{self._root}/locks")
        except NoSuchNode:
            return set()
        return {int(leaf[1]) for leaf in map(_LEAF.fullmatch, names) if leaf is not None}

    async def lock_owner(self, ledger_id: int) -> str | None:
        """Return the process that repairs a ledger, None if no process does."""
        try:
            data, _ = await self._tree.get(self._lock(ledger_id))
            return str(text_format.Parse(data.decode(), LockDataFormat()).bookieId)
        except NoSuchNode:
            return None
        except (ValueError, text_format.ParseError):
            return "an unknown process"

    async def unlock(self, ledger_id: int) -> None:
        """Release a lock that this session holds; a lock that ended with its session needs no release.

        Raises:
            MetadataError: the store failed; the next `lock` here finds that the lock is its own.
        """
        self._locked.discard(ledger_id)
        path = self._lock(ledger_id)
        stat = await self._tree.exists(path)
        if stat is None or stat.session_owner != self._tree.session_id:
            return
        with contextlib.suppress(NoSuchNode):
            await self._tree.delete(path)

    async def finish(self, work: Underreplicated) -> bool:
        """Remove a ledger from the list; return False if more missing copies were reported since `work` was read."""
        path = self._leaf(work.ledger_id)
        try:
            await self._tree.delete(path, work.version)
        except NoSuchNode:
            return True
        except MetadataVersion:
            return False
        parent = parent_of(path)
        for _ in range(_LEVELS):
            try:
                await self._tree.delete(parent)
            except MetadataError:
                break  # another ledger is listed there, or another process removed it
            parent = parent_of(parent)
        return True

    # ---- the operator's switches ----

    async def is_enabled(self) -> bool:
        return await self._tree.exists(f"{self._root}/disable") is None

    async def set_enabled(self, enabled: bool) -> None:
        """Enable or disable audits and repairs for all processes. Repeating it is harmless."""
        path = f"{self._root}/disable"
        if enabled:
            with contextlib.suppress(NoSuchNode):
                await self._tree.delete(path)
        else:
            with contextlib.suppress(NodeExists):
                await self._tree.create(path, make_parents=True)

    async def watch_enabled(self, callback: Callback) -> Callback:
        return await self._tree.watch(f"{self._root}/disable", callback)

    async def lost_bookie_recovery_delay(self) -> RecoveryDelay | None:
        """Return the delay that an operator set for all processes, or None. Raises MetadataFormat."""
        path = f"{self._root}/lostBookieRecoveryDelay"
        try:
            data, stat = await self._tree.get(path)
        except NoSuchNode:
            return None
        if _SECONDS.fullmatch(data) is None:
            raise MetadataFormat(f"{path} holds {data[:40]!r}, not a whole number of seconds below 10**9")
        return RecoveryDelay(int(data), stat.version)

    async def set_lost_bookie_recovery_delay_s(self, seconds: int) -> None:
        """Set the delay for all processes. The auditor, ours and Apache's, audits when it is written, whatever its
        value."""
        path, data = f"{self._root}/lostBookieRecoveryDelay", str(seconds).encode()
        try:
            await self._tree.create(path, data, make_parents=True)
        except NodeExists:
            await self._tree.set(path, data, -1)

    async def offer_lost_bookie_recovery_delay_s(self, seconds: int) -> None:
        """Set the delay if it is not set."""
        with contextlib.suppress(NodeExists):
            path = f"{self._root}/lostBookieRecoveryDelay"
            await self._tree.create(path, str(seconds).encode(), make_parents=True)

    async def watch_lost_bookie_recovery_delay(self, callback: Callback) -> Callback:
        return await self._tree.watch(f"{self._root}/lostBookieRecoveryDelay", callback)

    async def all_checked_ms(self) -> int | None:
        """Return when all ledgers were checked last, ms since 1970; None: never. Raises MetadataFormat."""
        path = f"{self._root}/checkallledgersctime"
        try:
            data, _ = await self._tree.get(path)
            return CheckAllLedgersFormat.FromString(data).checkAllLedgersCTime
        except NoSuchNode:
            return None
        except DecodeError as error:
            raise MetadataFormat(f"{path} cannot be read: {error}") from None

    async def set_all_checked_ms(self, now_ms: int) -> None:
        await self.set_checked_ms(PeriodicCheck.ALL_LEDGERS, now_ms)

    async def set_checked_ms(self, check: PeriodicCheck, now_ms: int) -> None:
        """Store when a check was carried out last, ms since 1970; 0: it is due."""
        path = f"{self._root}/{check.name_of_node}"
        # Apache's messages for the three checks differ in their names alone.
        data = CheckAllLedgersFormat(checkAllLedgersCTime=now_ms).SerializeToString()
        try:
            await self._tree.create(path, data, make_parents=True)
        except NodeExists:
            await self._tree.set(path, data, -1)
