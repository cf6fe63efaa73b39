"""The addresses of the cluster's bookies, from their registrations. Some connections are reserved for them.

They are looked up at intervals. If a look-up fails, the last addresses stay in force.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from bkspark.errors import BookKeeperError
from bkspark.log_limit import place_of
from bkspark.metadata.bookies import BookieRegistry
from bkspark.tasks import end_all

logger = logging.getLogger(__name__)

_INTERVAL_S = 60.0


class ClusterPeers:
    """Looks the addresses up from `start` to `stop`. For one event loop."""

    def __init__(self, registry: BookieRegistry, interval_s: float = _INTERVAL_S) -> None:
        self._registry = registry
        self._interval_s = interval_s
        """The time between two reads of the registrations."""
        self._task: asyncio.Task[None] | None = None
        """Looks the addresses up; None before `start`."""
        self.addresses: frozenset[str] = frozenset()
        """The addresses of the last look-up. Replaced as a whole by `refresh`."""

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end_all([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.refresh()
            except (BookKeeperError, OSError) as error:
                logger.info("the addresses of the cluster's bookies cannot be looked up now: %s", error)
            except Exception as error:
                # The bookies that join later must be known, too.
                logger.exception(
                    "the addresses of the cluster's bookies cannot be looked up because of an unexpected error",
                    extra={"kind": place_of(error)},
                )
            await asyncio.sleep(self._interval_s)

    async def refresh(self) -> None:
        """Look the addresses up. Raises BookKeeperError, OSError: the last addresses stay in force."""
        registered = {**await self._registry.read_only(), **await self._registry.writable()}
        hosts = sorted({address.host for address in registered.values() if address is not None})
        self.addresses = frozenset().union(*[await _addresses_of(host) for host in hosts])


async def _addresses_of(host: str) -> frozenset[str]:
    """Return the addresses of a host; empty: its name is unknown, or no host can have it."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        # A peer registers what its operator configured, such as a name with an empty label.
        return frozenset()
    return frozenset(str(address[0]) for *_, address in found)
