"""The application: its parts, its paths, and the samples that it takes in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web

from bkspark.cli.bookie_http import BookieHttpAccess
from bkspark.cli.console import SESSION_IDLE_S, SESSION_S
from bkspark.cli.console_limits import ConsoleLimits
from bkspark.client import Client
from bkspark.errors import BookKeeperError
from bkspark.failure_log import RepeatedFailure
from bkspark.security.access_file import AccessFile
from bkspark.tasks import end_all
from bkspark_console.access import ACTIONS, VIEW
from bkspark_console.actions import Actions
from bkspark_console.bookie_http import BookieHttp
from bkspark_console.cluster_view import ClusterView
from bkspark_console.connections import LIMITS, OpenConnections
from bkspark_console.guard import Guard
from bkspark_console.history import SAMPLE_S
from bkspark_console.live_tail import TAILS
from bkspark_console.pages import audit, bookies, ledgers, logs, operations, overview, repair, slow
from bkspark_console.pages.ledgers import PASSWORD
from bkspark_console.render import CLUSTER_NAME, STATIC, TEMPLATES, environment
from bkspark_console.sessions import Sessions

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class ConsoleOptions:
    """How a console runs. users: None: no sign-in. allowed_hosts: host names, in addition to localhost and addresses.

    session_idle_s, session_s: how long a session lasts without a request by its user, and in all.
    """

    uri: str
    users: AccessFile | None = None
    allowed_hosts: frozenset[str] = frozenset()
    session_idle_s: float = SESSION_IDLE_S
    session_s: float = SESSION_S
    sample_s: float = SAMPLE_S
    limits: ConsoleLimits = field(default_factory=ConsoleLimits)

    def __repr__(self) -> str:
        return f"ConsoleOptions({self.uri})"


def application(
    client: Client, options: ConsoleOptions, password: bytes, http: BookieHttpAccess, connections: OpenConnections
) -> web.Application:
    """Return the application of a console. The caller connects and closes `client`. `http`: access to bookies."""
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    connections.add_to(app)
    view = ClusterView(client, BookieHttp(http))
    app[VIEW] = view
    app[ACTIONS] = Actions(view)
    app[LIMITS] = options.limits
    app[TAILS] = asyncio.Semaphore(options.limits.tails)
    app[PASSWORD] = password
    app[TEMPLATES] = environment()
    app[CLUSTER_NAME] = options.uri
    sessions = Sessions(time.monotonic, options.session_idle_s, options.session_s)
    Guard(options.users, sessions, options.allowed_hosts).add_to(app)
    for page in (overview, bookies, ledgers, logs, repair, slow, operations, audit):
        page.add_to(app)
    app.router.add_get("/healthz", _alive)
    app.router.add_static("/static", STATIC)

    async def sampling(app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(sample_often(view, options.sample_s))
        yield
        await end_all([task])
        await view.http.close()

    app.cleanup_ctx.append(sampling)
    return app


async def _alive(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def sample_often(view: ClusterView, seconds: float) -> None:
    """Scrape all bookies at intervals, for ever. A failure has a line in the log at once, then once a minute."""
    failure = RepeatedFailure(
        logger, "the bookies' metrics cannot be read now", "the bookies' metrics can be read again"
    )
    while True:
        try:
            await view.sample()
            failure.worked()
        except BookKeeperError as error:
            failure.failed(error)
        except Exception:
            logger.exception("a sample failed: this is a defect")
        await asyncio.sleep(seconds)
