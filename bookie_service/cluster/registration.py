"""This bookie's registration in the metadata store, which is kept as long as the process serves.

The registration ends with the metadata session. If a connection is lost for a moment, the session stays, and nothing
happens here. After a session has expired, the bookie registers again as soon as the store answers; until then clients
that know the bookie continue to use it. If another process has taken the id meanwhile, this process must end.

A bookie that becomes read-only, or writable again, first registers at the other path and then removes the old node, as
Apache's bookies do: clients can find its address at every moment.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from bkspark.errors import MetadataError, NodeExists
from bkspark.log_limit import place_of
from bkspark.metadata.bookies import TAKEOVER_POLL_S, BookieRegistry
from bkspark.metadata.registration import INDEX_PROBLEM, REASON, BookieAddress

logger = logging.getLogger(__name__)

_RETRY_S = 1.0
SETTLE_S = 10.0


class Registration:
    """Registered from `enter` until `leave`. `lost` is done when another process has taken the id."""

    def __init__(self, registry: BookieRegistry, bookie_id: str, address: BookieAddress, *, read_only: bool) -> None:
        self._registry = registry
        self._bookie_id = bookie_id
        self._address = address
        """The registered address. Replaced together with `_read_only`."""
        self._read_only = read_only
        """Whether the bookie is registered as read-only."""
        self._again: asyncio.Task[None] | None = None
        """Registers again until it succeeds; None: that was never necessary."""
        self._is_due = False
        """Whether something has changed since the last attempt began."""
        self._has_left = False
        """Whether `leave` was called: from then on nothing is registered. Set once."""
        self.is_registered = False
        """Whether the store knows the bookie, in its current mode or the other one."""
        self.lost: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def enter(self) -> None:
        """Register in place of an earlier process of this bookie: the directories are locked, so that process is dead.

        First wait until no other bookie is registered at this address. That one must have ended, because this process
        has bound the address. Until its registration ends, too, clients would take the answers here for its answers.

        Raises:
            NodeExists: another bookie stays registered at this address, although its session should have expired.
            MetadataError: the store failed.
        """
        await self._wait_for_address()
        await self._register(take_over=True)
        self._registry.on_session_expired(self._on_session_expired)

    def change(self, *, read_only: bool, reason: str = "", index_problem: str = "") -> None:
        """Register as read-only with a reason, or as writable, as soon as the store accepts it.

        `index_problem`: of which ledgers the index is out of reach or takes no changes; "": of none.
        """
        others = {key: text for key, text in self._address.properties.items() if key not in (REASON, INDEX_PROBLEM)}
        said = {key: text for key, text in ((REASON, reason), (INDEX_PROBLEM, index_problem)) if text}
        address = replace(self._address, properties={**others, **said})
        if (read_only, address) != (self._read_only, self._address):
            self._read_only, self._address = read_only, address
            self._register_soon()

    async def settled(self) -> None:
        """Return when the store knows the bookie's current mode, or after `SETTLE_S`."""
        if self._again is not None and not self._again.done():
            await asyncio.wait([self._again], timeout=SETTLE_S)

    async def leave(self) -> None:
        """Remove the registration if the store can be reached. It ends with the session in any case.

        The bookie may need minutes to stop after this. A session that expires meanwhile, or a change of its mode, does
        not register it again: clients would choose it.
        """
        self._has_left = True
        if self._again is not None:
            self._again.cancel()
            await asyncio.wait([self._again])
        try:
            # Both paths, because a change from one to the other may have been interrupted.
            for read_only in (False, True):
                await self._registry.unregister(self._bookie_id, read_only=read_only)
        except MetadataError as error:
            logger.warning("left without removing the registration, which ends with the session: %s", error)

    async def _wait_for_address(self) -> None:
        place = f"{self._address.host}:{self._address.port}"
        deadline = asyncio.get_running_loop().time() + 2 * self._registry.session_timeout_s
        is_said = False
        while others := await self._registry.others_at(self._address.host, self._address.port, self._bookie_id):
            if not is_said:
                logger.warning(
                    "the bookie waits: %s is registered at its address %s until the session of that bookie expires",
                    others[0],
                    place,
                )
                is_said = True
            if asyncio.get_running_loop().time() > deadline:
                raise NodeExists(
                    f"bookie {others[0]} is registered at {place}, the address of bookie {self._bookie_id}: give one "
                    "of them another address (advertisedAddress, bookiePort)",
                    bookie=self._bookie_id,
                )
            await asyncio.sleep(TAKEOVER_POLL_S)

    async def _register(self, *, take_over: bool) -> None:
        await self._registry.register(self._bookie_id, self._address, read_only=self._read_only, take_over=take_over)
        self.is_registered = True

    def _on_session_expired(self) -> None:
        self.is_registered = False
        if self._has_left:
            return
        logger.warning("the metadata session expired; bookie %s registers again", self._bookie_id)
        self._register_soon()

    def _register_soon(self) -> None:
        self._is_due = not self._has_left and not self.lost.done()
        if self._is_due and (self._again is None or self._again.done()):
            self._again = asyncio.ensure_future(self._register_again())

    async def _register_again(self) -> None:
        while self._is_due:
            self._is_due = False
            read_only = self._read_only
            try:
                await self._register(take_over=False)
                await self._registry.unregister(self._bookie_id, read_only=not read_only)
                mode = "read-only" if read_only else "writable"
                logger.info("registered again, as %s", mode, extra={"attributes": {"mode": mode}})
            except NodeExists as error:
                self.lost.set_result(error)
                return
            except MetadataError:
                self._is_due = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                # Without a registration no client finds the bookie.
                logger.exception(
                    "bookie %s cannot register because of an unexpected error",
                    self._bookie_id,
                    extra={"kind": place_of(error)},
                )
                self._is_due = True
                await asyncio.sleep(_RETRY_S)
