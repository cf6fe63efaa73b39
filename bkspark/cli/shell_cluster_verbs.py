"""Verbs of Apache's `bookkeeper shell` about a cluster: its metadata, bookies, ledgers and their repair."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bkspark.cli.shell_language import (
    REFUSED,
    Failure,
    Options,
    Shell,
    confirmed,
    number_of,
    renamed_bookie,
    required,
)
from bkspark.ids import parse_host_port
from bkspark.metadata.uri import MetadataUri
from bkspark.net.host_names import host_name

if TYPE_CHECKING:
    from bkspark.metadata.underreplication import PeriodicCheck
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions

ALL_LEDGERS = 1_000_000_000
TEST_ENTRIES_MAX = 999_999_999
_TEST_LINE = b"x" * 100 + b"\n"
"""An entry of 100 bytes; the newline is not stored."""


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
    uri = shell.cluster_uri()
    if MetadataUri.parse(uri).root != root:
        raise Failure(f"the root {root!r:.200} is not that of {uri}")
    if options.force:
        return shell.cluster("cluster", "remove", "--force")
    return shell.cluster("cluster", "remove", "--instance", required(options.instanceid, "instanceid"))


def list_bookies(shell: Shell, options: Options) -> int:
    if sum((options.readwrite, options.readonly, options.all)) != 1:
        raise Failure("one and only one of -readwrite, -readonly and -all must be given", REFUSED)
    wanted = (
        {"available"} if options.readwrite else {"readonly"} if options.readonly else {"available", "readonly", "down"}
    )
    found = [each for each in shell.output("cluster", "bookies")["bookies"] if each["state"] in wanted]
    for each in found:
        print(f"{each['id']}  {host_name(_host(each))}" if options.hostnames else each["id"])
    if not found:
        print("No bookie exists!")
    return 0


def _host(bookie: dict[str, Any]) -> str:
    """Return the host that a bookie registered, or that its id names."""
    text: str = bookie["address"] or bookie["id"]
    try:
        return parse_host_port(text)[0]
    except ValueError:
        return text


def bookie_info(shell: Shell, options: Options) -> int:
    answer = shell.output("cluster", "bookies")
    for each in answer["bookies"]:
        free, total = each["free_bytes"], each["total_bytes"]
        if total is not None:
            print(f"{each['id']}  free={'unknown' if free is None else free}  total={total}")
    print(f"Total free disk space in the cluster: free={answer['free_bytes']}")
    print(f"Total disk capacity in the cluster: total={answer['total_bytes']}")
    return 0


def endpoint_info(shell: Shell, options: Options) -> int:
    return shell.cluster("cluster", "endpoints", required(options.bookieid, "bookieid"))


# ---- ledgers ----


def list_ledgers(shell: Shell, options: Options) -> int:
    words = ["--long"] if options.meta else []
    words += ["--if-exists", "--bookie", options.bookieid] if options.bookieid else []
    if shell.id_format == "long":
        return shell.cluster("ledger", "list", *words)
    for each in shell.output("ledger", "list", *words)["ledgers"]:
        if options.meta:
            print(shell.shown_id(each["ledger"]), each["state"], ", ".join(each["bookies"]), sep="  ")
        else:
            print(shell.shown_id(each))
    return 0


def ledger_metadata(shell: Shell, options: Options) -> int:
    ledger = shell.ledger_id(required(options.ledgerid, "ledgerid"))
    if options.dumptofile:
        return shell.cluster("ledger", "dump", ledger, options.dumptofile)
    if options.update and not options.restorefromfile:
        raise Failure("-update needs -restorefromfile, the file to update the metadata from")
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
    shown = {"string": "lines", "hex": "hex"}[shell.entry_format] if options.msg else "ids"
    # Apache's shell shows the entries that there are.
    return shell.cluster(*words, "--if-exists", "--format", shown)


def delete_ledger(shell: Shell, options: Options) -> int:
    ledger = shell.ledger_id(required(options.ledgerid, "ledgerid"))
    if not confirmed(f"Are you sure to delete ledger {ledger}?", is_forced=options.force):
        return 0
    return shell.cluster("ledger", "delete", ledger, "--if-exists")


def simple_test(shell: Shell, options: Options) -> int:
    words = ["--ensemble", options.ensemble or 3, "--write-quorum", options.writeQuorum or 2]
    words += ["--ack-quorum", options.ackQuorum or 2]
    text = options.numEntries or "1000"
    count = number_of(text)
    if count is None or count > TEST_ENTRIES_MAX:
        raise Failure(f"-numEntries {text!r:.40} is not a number of entries, of {TEST_ENTRIES_MAX} at most")
    with _test_entries(count) as name:
        ledger = shell.output("ledger", "write", *words, name)["ledger"]
    shell.output("ledger", "delete", ledger)
    print(f"Ledger ID: {shell.shown_id(ledger)}")
    print(f"{count} entries written to ledger {shell.shown_id(ledger)} (lastEntryId {count - 1})")
    return 0


@contextlib.contextmanager
def _test_entries(count: int) -> Iterator[str]:
    """Yield the name of a pipe from which this many entries can be read, once."""
    ours, theirs = os.pipe()

    def write() -> None:
        # The reader may end before it has read all of them.
        with contextlib.suppress(BrokenPipeError), open(theirs, "wb") as pipe:
            for _ in range(count):
                pipe.write(_TEST_LINE)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield f"/dev/fd/{ours}"
    finally:
        os.close(ours)
        writing.join()


def sanity(shell: Shell, options: Options) -> int:
    bookie = shell.local_bookie()
    words = ["--entries", options.entries or 10, "--timeout", options.timeout or 1]
    return shell.cluster("cluster", "sanity", bookie, *words)


# ---- repair ----


def recover(shell: Shell, options: Options) -> int:
    bookies = [each for each in options.words[0].split(",") if each]
    if not bookies:
        raise Failure("recover takes ID[,ID...]")
    for each in options.words[1:]:
        # The bookie to copy to, in old versions of Apache's shell.
        print(f"The provided bookie dest {each} will be ignored!", file=sys.stderr)
    what = f"Are you sure to recover {', '.join(bookies)}: the data on them must not be needed any more?"
    if not confirmed(what, is_forced=options.force):
        return 1
    if options.query or options.dryrun:
        if options.ledger is not None:
            return shell.cluster("ledger", "show", shell.ledger_id(options.ledger))
        return max(shell.cluster("ledger", "list", "--long", "--if-exists", "--bookie", bookie) for bookie in bookies)
    if options.ledger is not None:
        return shell.cluster("ledger", "repair", shell.ledger_id(options.ledger))
    words = ["--set", f"replicationRateByBytes={options.replicationRate}"] if options.replicationRate else []
    words += ["--skip-open"] if options.skipOpenLedgers else []
    words += ["--skip-failing"] if options.skipUnrecoverableLedgers else []
    verb = "decommission" if options.deleteCookie else "recover"
    return max(shell.cluster("cluster", verb, bookie, *words) for bookie in bookies)


def decommission(shell: Shell, options: Options) -> int:
    bookie = options.bookieid or shell.local_bookie()
    return shell.cluster("cluster", "decommission", bookie)


def autorecovery(shell: Shell, options: Options) -> int:
    # With both, Apache's shell enables.
    word = "--enable" if options.enable else "--disable" if options.disable else "--status"
    found = shell.output("cluster", "autorecovery", word)
    print(f"Autorecovery status: {'enabled' if found['enabled'] else 'disabled'}")
    return 0


def _listed(shell: Shell) -> list[dict[str, Any]]:
    import asyncio

    from bkspark.cli.repairs import listed

    return asyncio.run(listed(shell.cluster_uri(), shell.zookeeper(), None, ALL_LEDGERS))[0]


def query_status(shell: Shell, options: Options) -> int:
    found = [each for each in _listed(shell) if each["worker"] is not None]
    print("CurrentRecoverLedgerInfo:" if found else "No Ledger is being recovered.")
    for each in found:
        print(f"  LedgerId:{shell.shown_id(each['ledger'])}  Worker:{each['worker']}  BytesLeft:{each['bytes_left']}")
    return 0


def list_underreplicated(shell: Shell, options: Options) -> int:
    with_bookie, without = options.missingreplica, options.excludingmissingreplica
    found = [
        each
        for each in _listed(shell)
        if (not with_bookie or with_bookie in each["missing"]) and (not without or without not in each["missing"])
    ]
    for each in [] if options.onlydisplayledgercount else found:
        missing = f"  MissingReplica:{','.join(each['missing'])}" if options.printmissingreplica else ""
        worker = f"  ReplicationWorkerId:{each['worker']}" if options.printreplicationworkerid else ""
        print(f"{shell.shown_id(each['ledger'])}  Ctime : {each['since_ms']}{missing}{worker}")
    print(f"Under replicated ledger count: {len(found)}")
    return 0


def auditor(shell: Shell, options: Options) -> int:
    found = shell.output("cluster", "autorecovery", "--status")["auditor"]
    if found is None:
        raise Failure("No auditor elected")
    print(f"Auditor: {found}")
    return 0


def recovery_delay(shell: Shell, options: Options) -> int:
    if options.get == (options.set is not None):
        raise Failure("one and only one of -get and -set must be given", REFUSED)
    if options.get and shell.output("cluster", "delay")["lost_bookie_delay_s"] is None:
        raise Failure("no lostBookieRecoveryDelay is stored yet: an auditor stores it, or -set")
    return shell.cluster("cluster", "delay", *([] if options.get else [options.set]))


def trigger_audit(shell: Shell, options: Options) -> int:
    status = shell.output("cluster", "autorecovery", "--status")
    if not status["enabled"]:
        raise Failure("autorecovery is disabled: no auditor would act")
    if status["auditor"] is None:
        raise Failure("no auditor is elected: start a process of autorecovery")
    return shell.cluster("cluster", "audit")


def force_checks(shell: Shell, options: Options) -> int:
    import asyncio

    from bkspark.metadata.underreplication import PeriodicCheck

    wanted = {
        PeriodicCheck.ALL_LEDGERS: options.checkallledgerscheck,
        PeriodicCheck.PLACEMENT: options.placementpolicycheck,
        PeriodicCheck.REPLICAS: options.replicascheck,
    }
    checks = [check for check, is_wanted in wanted.items() if is_wanted]
    if not checks:
        raise Failure("at least one of -checkallledgerscheck, -placementpolicycheck and -replicascheck must be given")
    asyncio.run(_forget_checks(shell.cluster_uri(), shell.zookeeper(), checks))
    for check in checks:
        print(f"{check.value} is due when an auditor starts that has it")
    # Our auditor audits at once.
    return shell.cluster("cluster", "audit") if PeriodicCheck.ALL_LEDGERS in checks else 0


async def _forget_checks(uri: str, zookeeper: ZooKeeperOptions, checks: Sequence[PeriodicCheck]) -> None:
    from bkspark.cli.changes import record_by
    from bkspark.client import Client
    from bkspark.metadata.underreplication import UnderreplicationStore

    async with Client(uri, zookeeper=zookeeper) as client:
        store = UnderreplicationStore(await client.tree(), client.uri)
        await store.prepare()
        for check in checks:
            await store.set_checked_ms(check, 0)
            await record_by(client, f"forget when {check.value} was")


def rename_bookie(shell: Shell, options: Options) -> int:
    source, target = required(options.srcBookie, "srcBookie"), required(options.destBookie, "destBookie")
    _check_pace(options)
    return _rename(shell, source, target, options.limit)


def update_ledgers(shell: Shell, options: Options) -> int:
    """Name the configured bookie by its IP address instead of its host name in all ledgers, or the other way round."""
    _check_pace(options)
    renamed = renamed_bookie(shell, required(options.bookieId, "bookieId"))
    return 0 if renamed is None else _rename(shell, renamed.old, renamed.new, options.limit)


def _check_pace(options: Options) -> None:
    """Raise Failure if a number of an option is not above 0, as Apache's shell does."""
    for name in ("limit", "updatespersec", "maxOutstandingReads"):
        text = getattr(options, name) or "1"
        if number_of(text) == 0 or (text.startswith("-") and number_of(text[1:]) is not None):
            raise Failure(f"-{name} {text!r:.40} is not a number above 0")


def _rename(shell: Shell, source: str, target: str, limit: str | None) -> int:
    # Apache's verbs end with 0 if there is no such bookie.
    limits = [] if limit is None else ["--limit", limit]
    return shell.cluster("cluster", "rename", source, target, "--if-exists", *limits)
