"""Verbs of Apache's `bookkeeper shell` about a cluster: its metadata, bookies, ledgers and their repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bkspark.cli.shell_language import Failure, Options, Shell, confirmed, required

if TYPE_CHECKING:
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions

ALL_LEDGERS = 1_000_000_000


# ---- the cluster ----


def init_new_cluster(shell: Shell, options: Options) -> int:
    found = shell.output("cluster", "init")
    print(f"{found['uri']}: {'a new cluster' if found['created'] else 'there is a cluster already'}")
    return 0 if found["created"] else 1


def format_cluster(shell: Shell, options: Options) -> int:
    if options.nonInteractive and not options.force:
        raise Failure("with -nonInteractive a cluster that exists is formatted only with -force")
    if not confirmed("Are you sure to format all metadata of the cluster?", is_forced=options.force):
        return 1
    return shell.cluster("cluster", "format", "--force")


def nuke(shell: Shell, options: Options) -> int:
    root = required(options.zkledgersrootpath, "zkledgersrootpath")
    if not shell.cluster_uri().endswith(root):
        raise Failure(f"the root {root} is not that of {shell.cluster_uri()}")
    if options.force:
        return shell.cluster("cluster", "remove", "--force")
    return shell.cluster("cluster", "remove", "--instance", required(options.instanceid, "instanceid"))


def list_bookies(shell: Shell, options: Options) -> int:
    if sum((options.readwrite, options.readonly, options.all)) != 1:
        raise Failure("one and only one of -readwrite, -readonly and -all must be given")
    wanted = (
        {"available"} if options.readwrite else {"readonly"} if options.readonly else {"available", "readonly", "down"}
    )
    for each in shell.output("cluster", "bookies")["bookies"]:
        if each["state"] in wanted:
            print(each["id"])
    return 0


def endpoint_info(shell: Shell, options: Options) -> int:
    return shell.cluster("cluster", "endpoints", required(options.bookieid, "bookieid"))


# ---- ledgers ----


def list_ledgers(shell: Shell, options: Options) -> int:
    words = ["--long"] if options.meta else []
    words += ["--bookie", options.bookieid] if options.bookieid else []
    return shell.cluster("ledger", "list", *words)


def ledger_metadata(shell: Shell, options: Options) -> int:
    ledger = shell.ledger_id(required(options.ledgerid, "ledgerid"))
    if options.dumptofile:
        return shell.cluster("ledger", "dump", ledger, options.dumptofile)
    if options.restorefromfile:
        words = ["--update"] if options.update else []
        return shell.cluster("ledger", "restore", ledger, options.restorefromfile, *words)
    return shell.cluster("ledger", "show", ledger)


def read_ledger(shell: Shell, options: Options) -> int:
    words: list[object] = ["ledger", "read", shell.ledger_id(required(options.ledgerid, "ledgerid"))]
    words += ["--from", options.firstentryid] if options.firstentryid not in (None, "-1") else []
    words += ["--to", options.lastentryid] if options.lastentryid not in (None, "-1") else []
    words += ["--recover"] if options.force_recovery else []
    words += ["--bookie", options.bookie] if options.bookie else []
    return shell.cluster(*words)


def delete_ledger(shell: Shell, options: Options) -> int:
    ledger = shell.ledger_id(required(options.ledgerid, "ledgerid"))
    if not confirmed(f"Are you sure to delete ledger {ledger}?", is_forced=options.force):
        return 1
    return shell.cluster("ledger", "delete", ledger)


def simple_test(shell: Shell, options: Options) -> int:
    words = ["--ensemble", options.ensemble or 3, "--write-quorum", options.writeQuorum or 2]
    words += ["--ack-quorum", options.ackQuorum or 2]
    return shell.cluster("bench", "write", "--entries", options.numEntries or 1000, "--entry-size", 100, *words)


def sanity(shell: Shell, options: Options) -> int:
    bookie = shell.local_bookie()
    words = ["--entries", options.entries or 10, "--timeout", options.timeout or 1]
    return shell.cluster("cluster", "sanity", bookie, *words)


# ---- repair ----


def recover(shell: Shell, options: Options) -> int:
    bookies = [each for word in options.words for each in word.split(",") if each]
    if options.query or options.dryrun:
        return max(shell.cluster("ledger", "list", "--long", "--bookie", bookie) for bookie in bookies)
    if options.skipOpenLedgers:
        raise Failure("-skipOpenLedgers is not offered: open ledgers are moved after their grace period")
    if options.ledger is not None:
        return shell.cluster("ledger", "repair", shell.ledger_id(options.ledger))
    what = f"Are you sure to recover {', '.join(bookies)}: the data on them must not be needed any more?"
    if not confirmed(what, is_forced=options.force):
        return 1
    verb = "decommission" if options.deleteCookie else "recover"
    rate = ["--set", f"replicationRateByBytes={options.replicationRate}"] if options.replicationRate else []
    return max(shell.cluster("cluster", verb, bookie, *rate) for bookie in bookies)


def decommission(shell: Shell, options: Options) -> int:
    bookie = options.bookieid or shell.local_bookie()
    return shell.cluster("cluster", "decommission", bookie)


def autorecovery(shell: Shell, options: Options) -> int:
    if options.enable and options.disable:
        raise Failure("-enable and -disable exclude each other")
    word = "--enable" if options.enable else "--disable" if options.disable else "--status"
    return shell.cluster("cluster", "autorecovery", word)


def _listed(shell: Shell) -> list[dict[str, Any]]:
    import asyncio

    from bkspark.cli.repairs import listed

    return asyncio.run(listed(shell.cluster_uri(), shell.zookeeper(), None, ALL_LEDGERS))[0]


def query_status(shell: Shell, options: Options) -> int:
    found = [each for each in _listed(shell) if each["worker"] is not None]
    print("CurrentRecoverLedgerInfo:" if found else "No Ledger is being recovered.")
    for each in found:
        print(f"  LedgerId:{each['ledger']}  Worker:{each['worker']}  BytesLeft:{each['bytes_left']}")
    return 0


def list_underreplicated(shell: Shell, options: Options) -> int:
    with_bookie, without = options.missingreplica, options.excludingmissingreplica
    found = [
        each
        for each in _listed(shell)
        if (not with_bookie or with_bookie in each["missing"]) and (not without or without not in each["missing"])
    ]
    if options.onlydisplayledgercount:
        print(f"Under replicated ledger count: {len(found)}")
        return 0
    for each in found:
        missing = f"  MissingReplica:{','.join(each['missing'])}" if options.printmissingreplica else ""
        worker = f"  ReplicationWorkerId:{each['worker']}" if options.printreplicationworkerid else ""
        print(f"{each['ledger']}  Ctime : {each['since_ms']}{missing}{worker}")
    return 0


def auditor(shell: Shell, options: Options) -> int:
    found = shell.output("cluster", "autorecovery", "--status")["auditor"]
    if found is None:
        raise Failure("No auditor elected")
    print(f"Auditor: {found}")
    return 0


def recovery_delay(shell: Shell, options: Options) -> int:
    if options.get == (options.set is not None):
        raise Failure("one and only one of -get and -set must be given")
    return shell.cluster("cluster", "delay", *([] if options.get else [options.set]))


def force_checks(shell: Shell, options: Options) -> int:
    import asyncio

    if options.placementpolicycheck or options.replicascheck or not options.checkallledgerscheck:
        raise Failure("only -checkallledgerscheck is offered: this auditor has no other periodic check")
    asyncio.run(_forget_check(shell.cluster_uri(), shell.zookeeper()))
    return shell.cluster("cluster", "audit")


async def _forget_check(uri: str, zookeeper: ZooKeeperOptions) -> None:
    from bkspark.cli.changes import record_by
    from bkspark.client import Client
    from bkspark.metadata.underreplication import UnderreplicationStore

    async with Client(uri, zookeeper=zookeeper) as client:
        store = UnderreplicationStore(await client.tree(), client.uri)
        await store.prepare()
        await store.set_all_checked_ms(0)
        await record_by(client, "forget when all ledgers were checked")


def rename_bookie(shell: Shell, options: Options) -> int:
    source, target = required(options.srcBookie, "srcBookie"), required(options.destBookie, "destBookie")
    limit = ["--limit", options.limit] if options.limit not in (None, "-1") else []
    return shell.cluster("cluster", "rename", source, target, *limit)
