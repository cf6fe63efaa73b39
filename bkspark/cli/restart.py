"""`bkspark cluster restart`: restarts bookies one after the other, and waits for the cluster's health in between.

A bookie is restarted only if the cluster can do without it: every entry keeps a copy on another bookie that answers,
and every open ledger can still be recovered (`bkspark.core.health`). The bookie is in maintenance meanwhile, so that
its copies are not replaced. Our bookies restart themselves, in place; `--command` restarts others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import bookie_id, client_net, client_zookeeper, cluster_uri, seconds
from bkspark.cli.changes import record_by
from bkspark.cli.health import DEGRADED, cluster_facts
from bkspark.cli.output import print_json, print_table, progress
from bkspark.cli.plans import add_despite, check_known, harm, new_plan, plans_of, store_harmless, until_mode
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError
from bkspark.one_line import one_line

if TYPE_CHECKING:
    from bkspark.client import Client
    from bkspark.core.health import Reason
    from bkspark.metadata.bookie_plans import BookiePlans

POLL_S = 0.5
_STDERR = 2
"""The file descriptor of the standard error output."""
_AWAY = "metadata_unavailable"
IGNORED = ("autorecovery_disabled", "no_auditor", "bookie_disk_full")
"""Reasons of a degraded cluster that a restart does not make worse."""


class Unhealthy(BookKeeperError):
    """The cluster did not become healthy in time; nothing more was restarted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "bookies", nargs="*", type=bookie_id, metavar="ID", help="these bookies, in this order (default: all)"
    )
    parser.add_argument(
        "--command",
        type=command_words,
        metavar="COMMAND",
        help="restart a bookie by this command of this host, such as 'ssh {host} systemctl restart bookie'; {bookie}, "
        "{host} and {port} are replaced (default: bookies of bkspark restart by themselves)",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=300.0, metavar="SECONDS", help="for each step (default: %(default)g)"
    )
    add_despite(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the order of the restarts and what each bookie would wait for now; exit code 10: one would wait",
    )


def command_words(command: str) -> list[str]:
    """An argparse type: the words of a command."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{command!r} cannot be split into words: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("the command is empty: name a program")
    return words


def restart(arguments: argparse.Namespace) -> int:
    """Restart bookies; return 10 if the cluster was not, or did not become, healthy enough."""
    import asyncio

    if arguments.dry_run:
        return asyncio.run(_preview(arguments))
    done: list[dict[str, Any]] = []
    try:
        asyncio.run(_restart(arguments, done))
    except Unhealthy as error:
        progress(f"bkspark: {error}")
        if arguments.json:
            print_json({"restarted": done, "error": str(error)})
        return DEGRADED
    if arguments.json:
        print_json({"restarted": done, "done": True})
    else:
        print(f"{len(done)} bookies were restarted")
    return 0


async def _restart(arguments: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)

    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        bookies = await _chosen(client, arguments)
        for number, bookie in enumerate(bookies, 1):
            began, what = time.monotonic(), f"{number} of {len(bookies)}: bookie {bookie}"
            try:
                await restart_one(client, bookie, arguments, what)
            except MetadataError as error:
                if not error.is_outage:
                    raise
                raise Unhealthy(f"{what}: {error}. Look whether it runs; its maintenance ends by itself") from None
            done.append({"bookie": bookie, "seconds": round(time.monotonic() - began, 1)})


async def _chosen(client: Client, arguments: argparse.Namespace) -> list[str]:
    """Return the bookies to restart, in order.

    Raises:
        ConfigurationError: one is not known, does not run, or has a plan that does not end by itself.
    """
    states, stored = await (await client.context()).registry.states(), await plans_of(client)
    bookies = list(dict.fromkeys(arguments.bookies or states))
    for bookie in bookies:
        await check_known(client, bookie)
        if states[bookie] == "down":
            raise ConfigurationError(f"bookie {bookie} does not run: start it, or name others")
        plan = await stored.find(bookie)
        if plan is not None and not plan.until_ms:
            # Now, because the command would otherwise end here after it has restarted other bookies.
            raise ConfigurationError(plan.refusal)
    return bookies


async def _preview(arguments: argparse.Namespace) -> int:
    """Print what `restart` would do, and what prevents it now; return the exit code."""
    from bkspark.client import Client

    net, zookeeper = client_net(arguments), client_zookeeper(arguments)
    async with Client(cluster_uri(arguments), net=net, zookeeper=zookeeper) as client:
        bookies = await _chosen(client, arguments)
        against = {bookie: await _against(client, bookie, arguments.despite) for bookie in bookies}
    if arguments.json:
        planned = [
            {"bookie": bookie, "reasons": [dataclasses.asdict(each) for each in found]}
            for bookie, found in against.items()
        ]
        print_json({"restart": planned, "dry_run": True, "done": True})
    else:
        rows = [(bookie, _text(found)) for bookie, found in against.items()]
        print_table(["bookie", "waits for"], [(bookie, text or None) for bookie, text in rows])
    return DEGRADED if any(against.values()) else 0


async def _against(client: Client, bookie: str, despite: Collection[str]) -> list[Reason]:
    """Return what prevents a restart of a bookie now."""
    return [*await _unhealthy(client, despite), *await harm(client, bookie, list(despite))]


async def restart_one(client: Client, bookie: str, arguments: argparse.Namespace, what: str) -> None:
    """Restart one bookie when the cluster is healthy, and return when it is healthy again.

    Raises:
        Unhealthy: it is not in time.
        BookKeeperError, ConfigurationError: the bookie cannot be restarted.
    """
    import asyncio

    from bkspark.metadata.bookie_plans import MAINTENANCE

    async def against() -> list[Reason]:
        return await _against(client, bookie, arguments.despite)

    stored, registry = await plans_of(client), (await client.context()).registry
    deadline = time.monotonic() + arguments.timeout
    while True:
        await _until_none(against, deadline - time.monotonic(), f"{what} is not restarted")
        session = await registry.session(bookie)
        # The copies are replaced if this command dies in the middle and the bookie does not come back.
        plan = new_plan(bookie, MAINTENANCE, "restart", int(arguments.timeout) + 60)
        found = await store_harmless(client, stored, plan, arguments.despite)
        if not found:
            break
        if time.monotonic() > deadline:
            raise Unhealthy(f"{what} is not restarted: {_text(found)}")
        # Another command may have withdrawn at the same time. One of the two must come first the next time.
        await asyncio.sleep(POLL_S * (1 + (await client.context()).random.randrange(10)))
    try:
        await record_by(client, f"restart bookie {bookie}", is_made=False)
        if arguments.command is None:
            await until_mode(client, bookie, "readonly")
            progress(f"{what}: restarts")
            word = await _plan_restart(stored, bookie)
        else:
            progress(f"{what}: runs {shlex.join(arguments.command)}")
            word = None
            await _run(client, bookie, arguments.command, arguments.timeout)
        await _until_back(client, bookie, session, word, arguments.timeout, what)
    except BaseException:
        # A bookie that runs accepts entries again; one that did not come back counts as lost from now on.
        with contextlib.suppress(BookKeeperError):
            await stored.end_own(plan)
        raise
    stays_read_only = False
    if await stored.end_own(plan):
        await until_mode(client, bookie, "available", plan)
    elif (there := await stored.find(bookie)) is not None:
        stays_read_only = True
        progress(f"{what} has another plan now, which stays: {there.kind} by {one_line(there.who)}")

    async def not_yet() -> list[Reason]:
        found = await _unhealthy(client, arguments.despite)
        if not stays_read_only:
            return found
        return [each for each in found if (each.code, each.subject) != ("bookie_readonly", bookie)]

    await _until_none(not_yet, arguments.timeout, f"{what} was restarted, and the cluster did not become healthy")
    progress(f"{what}: is back, the cluster is healthy")


async def _plan_restart(stored: BookiePlans, bookie: str) -> str:
    """Let the bookie restart; return the word of this restart.

    Raises:
        BookKeeperError: another operator has ended its maintenance.
    """
    from bkspark.metadata.bookie_plans import MAINTENANCE

    word = uuid.uuid4().hex
    if await stored.update(bookie, MAINTENANCE, lambda plan: dataclasses.replace(plan, restart=word)) is None:
        raise BookKeeperError(f"another operator ended the maintenance of bookie {bookie}: it is not restarted")
    return word


async def _unhealthy(client: Client, despite: Collection[str]) -> list[Reason]:
    from bkspark.core.health import reasons

    return [reason for reason in reasons(await cluster_facts(client)) if reason.code not in (*IGNORED, *despite)]


def _text(found: Iterable[Reason]) -> str:
    return "; ".join(f"{each.code}: {each.text}" for each in found)


async def _until_none(ask: Callable[[], Awaitable[list[Reason]]], seconds_max: float, what: str) -> None:
    """Return when nothing prevents it any more. Raises Unhealthy."""
    import asyncio

    deadline, said = time.monotonic() + seconds_max, ""
    while found := await _asked(ask):
        text = _text(found)
        if time.monotonic() > deadline:
            raise Unhealthy(f"{what}: {text}")
        if text != said:
            said = text
            progress(f"waits: {text}")
        await asyncio.sleep(POLL_S)


async def _asked(ask: Callable[[], Awaitable[list[Reason]]]) -> list[Reason]:
    """Return the reasons. If the metadata store does not answer, this is the reason."""
    from bkspark.core.health import Reason

    try:
        return await ask()
    except MetadataError as error:
        if not error.is_outage:
            raise
        return [Reason(_AWAY, str(error))]


async def _until_back(
    client: Client, bookie: str, before: int | None, word: str | None, seconds_max: float, what: str
) -> None:
    """Return when a bookie was restarted and answers.

    It is registered by another session than `before`, and with the word of the restart. None: a command restarted it.

    Raises:
        Unhealthy: it is not, in time.
    """
    import asyncio

    from bkspark.cli.health import bookie_facts
    from bkspark.core.health import Reason
    from bkspark.metadata.registration import RESTARTED_FOR

    registry = (await client.context()).registry

    async def not_yet() -> list[Reason]:
        session = await registry.session(bookie)
        registered = None if word is None else await registry.registration(bookie)
        # After an outage of the metadata store a bookie may have another session without a restart.
        is_restarted = word is None or (registered is not None and registered.properties.get(RESTARTED_FOR) == word)
        is_new = session not in (None, before) and is_restarted
        if is_new and (await bookie_facts(client, bookie, "readonly")).serves:
            return []
        if session is not None and not is_new:
            why = f"is registered as before after {seconds_max:g} s: it was not restarted, or hangs"
        else:
            why = f"did not come back within {seconds_max:g} s: look at its log; the others run"
        return [Reason("not_back", why)]

    deadline, is_said = time.monotonic() + seconds_max, False
    while found := await _asked(not_yet):
        is_away = found[0].code == _AWAY
        if time.monotonic() > deadline:
            why = "was restarted, and it is not known whether it is back: " if is_away else ""
            raise Unhealthy(f"{what} {why}{found[0].text}")
        if is_away and not is_said:
            is_said = True
            progress(f"waits: {_text(found)}")
        await asyncio.sleep(POLL_S)


async def _run(client: Client, bookie: str, command: Sequence[str], seconds_max: float) -> None:
    """Run the command that restarts a bookie.

    Raises:
        Unhealthy: it takes longer than `seconds_max`. It is killed.
        ConfigurationError, BookKeeperError: it cannot be run, or fails.
    """
    import asyncio

    host, port = await (await client.context()).registry.resolve(bookie)
    replaced = {"{bookie}": bookie, "{host}": host, "{port}": str(port)}
    words = list(command)
    for name, value in replaced.items():
        words = [word.replace(name, value) for word in words]
    try:
        # Its output must not be among what --json prints for programs.
        running = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL, stdout=_STDERR)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"--command {shlex.join(words)} cannot be run: {why}") from None
    try:
        async with asyncio.timeout(seconds_max):
            code = await running.wait()
    except TimeoutError:
        raise Unhealthy(
            f"{shlex.join(words)} did not end within {seconds_max:g} s, and was killed: look at bookie {bookie}"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()
    if code:
        raise BookKeeperError(f"{shlex.join(words)} ended with {code}: bookie {bookie} is not restarted")
