"""Ledgers that were created for a log and never registered: their process ended between the two steps.

Such a ledger is empty, and only its custom metadata name the log. It is deleted in three steps:

1. It is old enough, it is neither registered as pending nor listed, and its metadata name the log.
2. It is recovered, as any open ledger: bookies refuse its writer's entries from now on, and its metadata change.
3. Only now the registrations and the list are read again, after everything that was written before. If the ledger is in
   neither and recovery found no entry, it is deleted.

This is safe for a process that is slow but not dead. A registration is one transaction with a check that the ledger's
metadata are those of its creation (`AttemptStore.add`), and step 2 changes them. If the registration comes before step
2, step 3 sees it and deletes nothing; if it comes later, it fails before anything was written to the ledger. A
recovered ledger that stays loses nothing either: its writer fails, or its recovered end is published.
"""

from __future__ import annotations

from bkspark.errors import BookKeeperError, DataLoss, MetadataError, MetadataFormat, NoSuchLedger
from bkspark.ledger import Cluster
from bkspark.log.attempts import DeleteLedger
from bkspark.log.formats import own_metadata
from bkspark.log.store import LogStore
from bkspark.tasks import each_of

LIST_TRIES_MAX = 10


async def delete_unregistered(
    cluster: Cluster, store: LogStore, name: str, delete_ledger: DeleteLedger, *, created_before_ms: int
) -> int:
    """Delete the empty ledgers that were created for a log before a time (the metadata store's clock), and never
    registered; return their number.

    It lists the cluster's ledgers and reads the metadata of each that is not in this log's list. A ledger for which too
    few bookies answer is left to the next call.

    Raises:
        NoSuchLog: there is no such log.
    """
    # What is read before the listing only saves reads of metadata: the chosen ledgers are compared again below.
    known = await _known(store, name)
    old: list[int] = []
    async for page in (await cluster.context()).ledgers.pages():
        others = [ledger_id for ledger_id in page.tolist() if ledger_id not in known]
        answers = await each_of(lambda ledger_id: _is_of_log(cluster, ledger_id, name, created_before_ms), others)
        old += [ledger_id for ledger_id, is_chosen in zip(others, answers) if is_chosen]
    if not old:
        return 0
    left = await _without_known(store, name, old)
    empty = [ledger_id for ledger_id in left if await _is_recovered_empty(cluster, ledger_id, name)]
    if not empty:
        return 0
    await (await cluster.tree()).catch_up()
    doomed = await _without_known(store, name, empty)
    for ledger_id in doomed:
        await delete_ledger(ledger_id)
    return len(doomed)


async def _without_known(store: LogStore, name: str, ledger_ids: list[int]) -> list[int]:
    """Return the ledgers that are neither registered nor listed."""
    known = await _known(store, name)
    return [ledger_id for ledger_id in ledger_ids if ledger_id not in known]


async def _known(store: LogStore, name: str) -> set[int]:
    """Return the ledgers that are registered or listed.

    A ledger enters the list before its registration ends, so the registrations are read first.
    """
    for _ in range(LIST_TRIES_MAX):
        known = await store.attempts.pending_ids(name)
        try:
            async for run in (await store.snapshot(name)).runs():
                known.update(listed.ledger_id for listed in run)
        except DataLoss:
            continue  # a truncation removed a page of this list: read the new, shorter list
        return known
    raise MetadataError(f"log {name} was truncated {LIST_TRIES_MAX} times while its list was read: try again later")


async def _is_of_log(cluster: Cluster, ledger_id: int, name: str, created_before_ms: int) -> bool:
    try:
        stored = await (await cluster.context()).ledgers.read(ledger_id)
    except (NoSuchLedger, MetadataFormat):
        return False  # deleted meanwhile, or written by a program that is not ours
    custom = stored.metadata.custom_metadata
    is_of_log = own_metadata(name).items() <= custom.items()
    return is_of_log and stored.ctime_ms < created_before_ms


async def _is_recovered_empty(cluster: Cluster, ledger_id: int, name: str) -> bool:
    try:
        return (await cluster.recover(ledger_id, having=own_metadata(name))).last_entry < 0
    except BookKeeperError:
        return False  # the next vacuum tries again
