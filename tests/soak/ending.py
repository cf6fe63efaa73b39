"""The last look at the cluster of a soak: everything is there, nothing lacks copies, no garbage is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bkspark.blocking import Client, run
from bkspark.errors import BookKeeperError, NoSuchLedger
from bkspark.log.log import Log
from tests.soak.drivers import command, lines
from tests.soak.machines import OVERREPLICATED_S, Machines, SoakBookie

REPAIRED_S = 360.0
"""Within this time after the faults no ledger lacks copies: two checks of all ledgers, and what they find to copy."""
LOOK_S = 2.0
COLLECTIONS = 4
"""Rounds of garbage collection before everything must be gone."""
DEAD_SHARE_MAX = 0.25
"""Live share of the entries in a bookie's logs after its collection: major compaction rewrites logs below 0.8."""
DEAD_ENTRIES_MIN = 2_000
"""So few dead entries are fine whatever their share is: a log that is being written is not compacted."""


def check(machines: Machines, logs: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a cluster and its logs when its load has ended. Stops the bookies."""
    yield from not_repaired(machines)
    yield from left_by_logs(machines, logs)
    # It would regard the bookies that are stopped below as lost.
    command("cluster", "autorecovery", "--disable", "--uri", machines.uri)
    # What one round learns may be done in the next: a ledger goes when two proofs agree that it is deleted.
    for is_last in [False] * (COLLECTIONS - 1) + [True]:
        found = [complaint for bookie in machines.bookies for complaint in _not_collected(bookie)]
        if not is_last:
            time.sleep(OVERREPLICATED_S + 1)
    yield from found
    with Client(machines.uri) as client:
        wanted = {bookie.id: _ledgers_of(client, bookie.id) for bookie in machines.bookies}
    for bookie in machines.bookies:
        bookie.stop()
        if bookie.ending() != "ended with exit code 0":
            yield f"bookie {bookie.id}, stopped by SIGTERM, {bookie.ending()}"
        yield from damaged(bookie)
        held = {
            fact["ledger"] for fact in lines("dump", "index", *map(str, bookie.directories[1:])) if "ledger" in fact
        }
        if garbage := sorted(held - wanted[bookie.id]):
            yield f"bookie {bookie.id} holds {len(garbage)} ledgers that are deleted or elsewhere: {garbage[:5]}"


def not_repaired(machines: Machines) -> Iterator[str]:
    """Autorecovery has nothing left to do, and every copy of every entry is where metadata say."""
    end_s = time.monotonic() + REPAIRED_S
    while True:
        _, (listed,), _ = command("cluster", "underreplicated", "--uri", machines.uri)
        exit_code, (checked,), said = command("cluster", "check", "--uri", machines.uri)
        if not listed["ledgers"] and exit_code == 0 and checked["ok"]:
            return
        if time.monotonic() > end_s:
            break
        time.sleep(LOOK_S)
    if listed["ledgers"]:
        yield f"{len(listed['ledgers'])} ledgers are still listed as under-replicated: {listed['ledgers'][:3]}"
    if not checked["ok"]:
        yield f"cluster check after {REPAIRED_S:g} s: {checked} {said[-300:]}"


def left_by_logs(machines: Machines, logs: Sequence[str]) -> Iterator[str]:
    """No attempt stays registered, and no ledger with entries belongs to a log that does not list it."""
    with Client(machines.uri) as client:
        listed: set[int] = set()
        for name in logs:
            try:
                client.log(name).vacuum(older_than_s=0)
                attempts = run(Log(client.asynchronous, name).store).attempts
                if pending := run(lambda: attempts.pending(name)):  # noqa: B023
                    yield f"{len(pending)} attempts of log {name} are still registered"
                listed |= {item["ledger"] for item in client.log(name).show()["ledgers"]}
            except BookKeeperError as error:
                yield f"log {name} cannot be looked at: {error!r}"
        orphans = [ledger_id for ledger_id in client.ledgers() if _is_left(client, ledger_id, listed)]
        if orphans:
            yield f"{len(orphans)} ledgers were made for logs, hold entries and are in none: {sorted(orphans)[:5]}"


def _is_left(client: Client, ledger_id: int, listed: set[int]) -> bool:
    try:
        metadata = client.metadata(ledger_id)
        if "log" not in metadata.custom_metadata or ledger_id in listed:
            return False
        return client.open(ledger_id, recover=True).last_entry >= 0
    except NoSuchLedger:
        return False


def _not_collected(bookie: SoakBookie) -> Iterator[str]:
    exit_code, reports, said = command("bookie", "--collect", *bookie.arguments())
    if exit_code or not reports:
        yield f"bookie {bookie.id} --collect: exit code {exit_code}: {said[-300:]}"
        return
    (report,) = reports
    if report["kept_because"]:
        yield f"bookie {bookie.id} keeps garbage: {report['kept_because']}"
    if report["damaged_logs"]:
        yield f"bookie {bookie.id} has {report['damaged_logs']} damaged entry logs"


def damaged(bookie: SoakBookie) -> Iterator[str]:
    exit_code, reports, said = command("bookie", "--check", *bookie.arguments())
    if exit_code or not reports or not reports[0]["ok"]:
        yield f"bookie {bookie.id} --check: exit code {exit_code}: {str(reports)[:600]} {said[-300:]}"
        return
    (report,) = reports
    dead = report["logged_entries"] - report["positions"]
    if dead > max(DEAD_ENTRIES_MIN, DEAD_SHARE_MAX * report["logged_entries"]):
        logged = report["logged_entries"]
        yield f"bookie {bookie.id}: {dead} of {logged} entries in its logs are dead after a collection"


def _ledgers_of(client: Client, bookie_id: str) -> set[int]:
    """Return the ledgers whose metadata name a bookie."""
    found = set()
    for ledger_id in client.ledgers():
        metadata = client.metadata(ledger_id)
        if any(bookie_id in fragment.bookies for fragment in metadata.fragments):
            found.add(ledger_id)
    return found
