"""Election: which of several processes leads, by the recipe of kazoo's `Election` and `Lock`. Optional.

A log does not need an election: a process that opens it for writing fences the previous writer, so the entries of two
leaders never interleave. But processes that all try to write take the log from each other in turn; if they elect a
leader first, the others wait.

A contender is an ephemeral sequential node below the election's path, named `<32 hexadecimal digits>__lock__<number>`,
with the contender's identity as its data. These are kazoo's names and data, so kazoo's contenders can take part. The
lowest number leads; every other contender watches the node before its own. Leadership ends with the session (`lost`). A
process may notice that late; then only the log's own fence stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid

from bkspark.errors import MetadataAccessDenied, MetadataError, NoSuchNode
from bkspark.metadata.tree import Callback, Tree
from bkspark.tasks import start_kept

ELECTIONS_ROOT = "/bkspark/elections"
_MARK = "__lock__"
_SEQUENCE_DIGITS = 10
_SEQUENCE = re.compile(f"[0-9]{{{_SEQUENCE_DIGITS}}}")
RETRY_PAUSE_S = 0.5
RESIGN_TRIES_MAX = 4
"""Attempts of a resignation at an unreachable store; afterwards the end of the session removes the node."""


class Election:
    """One contender. As an async context manager it waits until this process leads, and resigns at the end.

    Args:
        path: the election's node; contenders with the same path contend with each other.
        identity: what `contenders` shows to others, such as "host:pid".
        retry_pause_s: pause before an unreachable store is asked again.
    """

    def __init__(self, tree: Tree, path: str, identity: str, *, retry_pause_s: float = RETRY_PAUSE_S) -> None:
        self.lost = asyncio.Event()
        """Set when the leadership, or the place in the queue, is gone: stop acting as the leader."""
        self._tree = tree
        self._path = path
        self._identity = identity.encode()
        self._retry_pause_s = retry_pause_s
        self._token = uuid.uuid4().hex
        """In the name of this contender's node, so that it finds the node again if the answer was lost. Constant."""
        self._node: str | None = None
        """The path of this contender's node; None before it is known, and after `resign`."""
        self._stop_watching: Callback | None = None
        """Ends the watch of this leader's own node; None while it does not lead."""
        self._stop_hearing: Callback | None = None
        """Ends the report of the session's end; None: this contender is not in the queue."""

    @property
    def is_lost(self) -> bool:
        """Whether `lost` is set."""
        return self.lost.is_set()

    async def __aenter__(self) -> Election:
        await self.win()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()

    async def win(self) -> None:
        """Return when this contender leads. An unreachable store is retried; cancelling the call resigns.

        Raises:
            MetadataAccessDenied: this client may not contend.
        """
        if self._stop_hearing is None:
            self._stop_hearing = self._tree.on_session_expired(self.lost.set)
        try:
            while not await self._leads():
                pass
        except BaseException:
            await self.resign()
            raise

    async def _leads(self) -> bool:
        """Join the queue if needed, or wait until the contender before this one may be gone; return whether this
        contender is the first."""
        try:
            names = await self._queue()
            own = next((name for name in names if name.startswith(self._token)), None)
            if own is not None and self.lost.is_set():
                # `lost` was set, so this contender may have stopped acting: it takes a new place, at the queue's end.
                await self._tree.delete(f"{self._path}/{own}")
                own = None
            if own is None:
                await self._join()
                return False
            self._node = f"{self._path}/{own}"
            if names[0] == own:
                await self._watch_own()
                return await self._is_first(own)
            await self._wait_for(f"{self._path}/{names[names.index(own) - 1]}")
        except MetadataAccessDenied:
            raise
        except MetadataError:
            # The store is unreachable, or the session ended. If a node was created, the next round finds it by its
            # token.
            await asyncio.sleep(self._retry_pause_s)
        return False

    async def _is_first(self, own: str) -> bool:
        names = await self._queue()
        return names[:1] == [own] and not self.lost.is_set()

    async def _join(self) -> None:
        self.lost.clear()
        prefix = f"{self._path}/{self._token}{_MARK}"
        await self._tree.create(prefix, self._identity, ephemeral=True, sequential=True, make_parents=True)

    async def _queue(self) -> list[str]:
        """Return the names of the contenders' nodes, the next leader first."""
        try:
            names = await self._tree.children(self._path)
        except NoSuchNode:
            return []
        numbered = [name for name in names if _MARK in name and _SEQUENCE.fullmatch(name[-_SEQUENCE_DIGITS:])]
        return sorted(numbered, key=lambda name: int(name[-_SEQUENCE_DIGITS:]))

    async def _wait_for(self, path: str) -> None:
        """Return when the node at `path` may have gone."""
        changed = asyncio.Event()
        stop = await self._tree.watch(path, changed.set)
        try:
            if await self._tree.exists(path) is not None:
                await changed.wait()
        finally:
            stop()

    async def _watch_own(self) -> None:
        """Set `lost` when our node vanishes: it was deleted, or the session ended."""
        assert self._node is not None
        if self._stop_watching is not None:
            self._stop_watching()
        looks: set[asyncio.Task[None]] = set()

        def look() -> None:
            start_kept(self._look_for_own(), looks)

        self._stop_watching = await self._tree.watch(self._node, look)

    async def _look_for_own(self) -> None:
        while self._node is not None:
            try:
                if await self._tree.exists(self._node) is None:
                    self.lost.set()
                return
            except MetadataError:
                # The store is unreachable. The watch has fired and does not fire again, so ask again; the end of the
                # session is reported separately.
                await asyncio.sleep(self._retry_pause_s)

    async def resign(self) -> None:
        """Leave the queue, or give up the leadership. A second call is harmless.

        If the store stays unreachable, or denies this client access, the node is removed when the session ends.
        """
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        if self._stop_hearing is not None:
            # The tree may serve many elections, one after the other.
            self._stop_hearing()
            self._stop_hearing = None
        self._node = None
        self.lost.set()
        for number in range(RESIGN_TRIES_MAX):
            if number:
                await asyncio.sleep(self._retry_pause_s)
            try:
                for name in await self._queue():
                    if name.startswith(self._token):
                        await self._tree.delete(f"{self._path}/{name}")
                return
            except (NoSuchNode, MetadataAccessDenied):
                return
            except MetadataError:
                continue

    async def contenders(self) -> list[str]:
        """Return the identities of all contenders, the leader's first."""
        found = []
        for name in await self._queue():
            with contextlib.suppress(NoSuchNode):
                data, _ = await self._tree.get(f"{self._path}/{name}")
                found.append(data.decode(errors="replace"))
        return found
