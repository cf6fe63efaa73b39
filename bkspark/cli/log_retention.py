"""`bkspark log retention`, `expire` and `consumers`: how long logs keep ledgers, and for which registered readers."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from bkspark.cli.arguments import AGE_S, age
from bkspark.cli.changes import record_blocking
from bkspark.cli.connecting import connect
from bkspark.cli.output import human_bytes, print_json, print_table, progress
from bkspark.errors import BookKeeperError, ConfigurationError, NoSuchLog
from bkspark.options import SIZE_UNITS

if TYPE_CHECKING:
    from bkspark.blocking import Client
    from bkspark.log import ConsumerState, Retention

NO_LIMIT = "none"
T = TypeVar("T", int, float)
_SIZE = re.compile(r"([0-9]{1,18}) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)


def add_retention(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `retention`."""
    parser.add_argument(
        "--age",
        type=_age_limit,
        metavar="AGE",
        help="delete ledgers whose entries are all older than 7d, 12h, 30m, ...; none: no limit",
    )
    parser.add_argument(
        "--bytes",
        type=_bytes_limit,
        metavar="SIZE",
        help="delete ledgers if the ledgers after them have at least 10g, 500m, ... of payload; none: no limit",
    )


def add_expire(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `expire`."""
    parser.add_argument("logs", nargs="*", metavar="NAME", help="logs (default: all of the cluster)")


def add_consumers(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `consumers`."""
    parser.add_argument("--remove", metavar="CONSUMER", help="end the registration of this reader")


def _age_limit(text: str) -> float | str:
    return NO_LIMIT if text.strip().lower() == NO_LIMIT else age(text)


def _bytes_limit(text: str) -> int | str:
    if text.strip().lower() == NO_LIMIT:
        return NO_LIMIT
    found = _SIZE.fullmatch(text.strip())
    byte_count = int(found[1]) * SIZE_UNITS[found[2].lower()] if found else 0
    if not byte_count:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a size such as 512m or 10g, nor {NO_LIMIT}")
    return byte_count


def retention(arguments: argparse.Namespace) -> int:
    """Show, or set and show, how long a log keeps its ledgers."""
    with connect(arguments) as client:
        log = client.log(arguments.log)
        kept = log.retention()
        if arguments.age is not None or arguments.bytes is not None:
            age_s = _changed(arguments.age, None if kept.age_ms is None else kept.age_ms / 1000)
            byte_count = _changed(arguments.bytes, kept.bytes)
            log.set_retention(age_s=age_s, bytes=byte_count)
            kept = log.retention()
            record_blocking(client, f"set retention of log {arguments.log} to {shown(kept)}")
    if arguments.json:
        print_json({"log": arguments.log, "retention": kept.to_json()})
    else:
        print(f"log {arguments.log} keeps {shown(kept)}")
    return 0


def _changed(wanted: T | str | None, present: T | None) -> T | None:
    """Return the limit that the arguments want (NO_LIMIT or a limit), or the present one; None: no limit."""
    if wanted is None:
        return present
    return None if isinstance(wanted, str) else wanted


def shown(kept: Retention) -> str:
    """Return limits in words."""
    limits = []
    if kept.age_ms is not None:
        limits.append(f"entries of the last {_shown_age(kept.age_ms)}")
    if kept.bytes is not None:
        limits.append(f"the last {human_bytes(kept.bytes)}")
    return ", and no more than ".join(limits) if limits else "everything"


def _shown_age(age_ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if age_ms % (AGE_S[unit] * 1000) == 0:
            return f"{age_ms // (AGE_S[unit] * 1000)}{unit}"
    return f"{age_ms} ms"


def expire(arguments: argparse.Namespace) -> int:
    """Remove expired ledgers of some logs, or of all logs of the cluster.

    With all logs, a failure at one log does not stop the others; the exit code is 1 then.
    """
    with connect(arguments) as client:
        found, is_whole = [], True
        for name in arguments.logs or client.logs():
            try:
                if not arguments.logs and not _is_of_cluster(client, name):
                    continue
                deleted = client.log(name).expire()
            except BookKeeperError as error:
                if arguments.logs:
                    raise
                if not isinstance(error, NoSuchLog):  # deleted since it was listed
                    progress(f"log {name} was not expired: {error}")
                    is_whole = False
                continue
            found.append({"log": name, "deleted": deleted})
            if deleted:
                record_blocking(client, f"expire log {name}, {deleted} ledgers deleted")
    if arguments.json:
        print_json({"logs": found})
    else:
        print_table(["log", "ledgers deleted"], [[each["log"], each["deleted"]] for each in found])
    return 0 if is_whole else 1


def _is_of_cluster(client: Client, name: str) -> bool:
    """Return whether a log belongs to this cluster: the metadata store may have logs of others."""
    from bkspark.blocking import run
    from bkspark.log.log import store_of

    async def find() -> bool:
        return await (await store_of(client.asynchronous)).find(name) is not None

    return run(find)


def consumers(arguments: argparse.Namespace) -> int:
    """Show the registered readers of a log, or remove one. If one cannot be read, the exit code is 1."""
    with connect(arguments) as client:
        log = client.log(arguments.log)
        if arguments.remove is not None:
            if not log.remove_consumer(arguments.remove):
                raise ConfigurationError(f"--remove {arguments.remove}: log {arguments.log} has no such reader")
            record_blocking(client, f"remove consumer {arguments.remove} of log {arguments.log}")
        found = log.consumers()
    if arguments.json:
        print_json({"log": arguments.log, "consumers": [_json(each) for each in found]})
    else:
        columns = ["consumer", "lag in entries", "lag in bytes", "expires", "expired"]
        print_table(columns, [_cells(each) for each in found])
    unreadable = [each for each in found if each.error is not None]
    for each in unreadable:
        progress(f"consumer {each.name}: {each.error}")
    return 1 if unreadable else 0


def _json(state: ConsumerState) -> dict[str, Any]:
    position = None if state.position is None else state.position.to_json()
    expires = None if state.expires is None else state.expires.isoformat()
    return {**asdict(state), "position": position, "expires": expires}


def _cells(state: ConsumerState) -> list[object]:
    if state.expires is None or state.bytes_behind is None:
        return [state.name, "-", "-", "-", "cannot be read"]
    expires = state.expires.isoformat(timespec="seconds")
    return [state.name, state.entries_behind, human_bytes(state.bytes_behind), expires, state.is_expired]
