"""The table of all verbs of Apache's `bookkeeper shell`: options, our equal, and what runs it (docs/shell.md)."""

from __future__ import annotations

from bkspark.cli.shell_bookie_verbs import (
    active_ledgers,
    cookie,
    format_bookie,
    generate_cookie,
    init_bookie,
    ledger_index,
    list_files,
    read_journal,
    read_log,
    read_log_metadata,
    regenerate_index,
    update_cookie,
)
from bkspark.cli.shell_cluster_verbs import (
    auditor,
    autorecovery,
    bookie_info,
    decommission,
    delete_ledger,
    endpoint_info,
    force_checks,
    format_cluster,
    init_new_cluster,
    ledger_metadata,
    list_bookies,
    list_ledgers,
    list_underreplicated,
    nuke,
    query_status,
    read_ledger,
    recover,
    recovery_delay,
    rename_bookie,
    sanity,
    simple_test,
    trigger_audit,
    update_ledgers,
)
from bkspark.cli.shell_language import REFUSED, Failure, Options, Shell, Verb, VerbOption, VerbRun


def _switch(*names: str) -> VerbOption:
    return VerbOption(names)


def _value(*names: str, value: str) -> VerbOption:
    return VerbOption(names, value)


def _not_offered(why: str) -> VerbRun:
    def run(shell: Shell, options: Options) -> int:
        raise Failure(f"not offered: {why}")

    return run


def _at(*words: str) -> VerbRun:
    """Return what runs a command on the cluster."""
    return lambda shell, options: shell.cluster(*words)


def _on_files(*words: str) -> VerbRun:
    """Return what runs a command on the files of the configured bookie."""
    return lambda shell, options: shell.local(*words)


_LEDGER = _value("l", "ledgerid", value="ID")
_FORCE = _switch("f", "force")
_NOT_INTERACTIVE = _switch("n", "nonInteractive")
_VERBOSE = _switch("v", "verbose")
_MESSAGE = _switch("m", "msg")
_PACE = (
    _value("s", "updatespersec", value="N"),
    _value("r", "maxOutstandingReads", value="N"),
    _value("l", "limit", value="N"),
    _VERBOSE,
    _value("p", "printprogress", value="S"),
)
_COOKIE_FILE = _value("cf", "cookie-file", value="FILE")


def _converted(storage_class: str) -> Verb:
    """Return the verb that converts the index of the configured bookie for a class."""
    kind = storage_class.removesuffix("LedgerStorage")
    return Verb(
        f"convert-to-{kind.lower()}-storage",
        _on_files("bookie", "--convert-index", "--set", f"ledgerStorageClass={storage_class}"),
        f"bookie --convert-index --set ledgerStorageClass={storage_class}",
        note="then set this ledgerStorageClass in the file",
    )


VERBS: tuple[Verb, ...] = (
    Verb("initnewcluster", init_new_cluster, "cluster init", failed=REFUSED),
    Verb("metaformat", format_cluster, "cluster format", (_NOT_INTERACTIVE, _FORCE), failed=REFUSED),
    Verb(
        "nukeexistingcluster",
        nuke,
        "cluster remove",
        (_value("p", "zkledgersrootpath", value="ROOT"), _value("i", "instanceid", value="ID"), _FORCE),
        failed=REFUSED,
    ),
    Verb("initbookie", init_bookie, "bookie", note="a first start does it", failed=REFUSED),
    Verb(
        "bookieformat",
        format_bookie,
        "shell bookieformat",
        (_NOT_INTERACTIVE, _FORCE, _switch("d", "deleteCookie")),
        failed=REFUSED,
    ),
    Verb("whatisinstanceid", _at("cluster", "id"), "cluster id"),
    Verb(
        "listbookies",
        list_bookies,
        "cluster bookies",
        (_switch("rw", "readwrite"), _switch("ro", "readonly"), _switch("a", "all"), _switch("h", "hostnames")),
    ),
    Verb("bookieinfo", bookie_info, "cluster bookies"),
    Verb("clusterinfo", _at("cluster", "info", "--json"), "cluster info --json"),
    Verb("endpointinfo", endpoint_info, "cluster endpoints ID", (_value("b", "bookieid", value="ID"),)),
    Verb(
        "listledgers",
        list_ledgers,
        "ledger list [--long] [--bookie ID]",
        (_switch("m", "meta"), _value("bookieid", value="ID")),
    ),
    Verb(
        "ledgermetadata",
        ledger_metadata,
        "ledger show, dump, restore",
        (
            _LEDGER,
            _value("d", "dumptofile", value="FILE"),
            _value("r", "restorefromfile", value="FILE"),
            _switch("u", "update"),
        ),
    ),
    Verb(
        "readledger",
        read_ledger,
        "ledger read",
        (
            _LEDGER,
            _value("fe", "firstentryid", value="N"),
            _value("le", "lastentryid", value="N"),
            _MESSAGE,
            _switch("r", "force-recovery"),
            _value("b", "bookie", value="ID"),
        ),
    ),
    Verb("deleteledger", delete_ledger, "ledger delete ID --if-exists", (_LEDGER, _FORCE)),
    Verb(
        "simpletest",
        simple_test,
        "ledger write",
        (
            _value("e", "ensemble", value="N"),
            _value("w", "writeQuorum", value="N"),
            _value("a", "ackQuorum", value="N"),
            _value("n", "numEntries", value="N"),
        ),
    ),
    Verb(
        "bookiesanity",
        sanity,
        "cluster sanity ID",
        (_value("e", "entries", value="N"), _value("t", "timeout", value="S")),
    ),
    Verb(
        "recover",
        recover,
        "cluster recover ID, ledger repair ID",
        (
            _switch("q", "query"),
            _switch("dr", "dryrun"),
            _FORCE,
            _value("l", "ledger", value="ID"),
            _switch("sk", "skipOpenLedgers"),
            _switch("d", "deleteCookie"),
            _switch("sku", "skipUnrecoverableLedgers"),
            _value("rate", "replicationRate", value="BYTES"),
        ),
        "ID[,ID...]",
        "a ledger that cannot be repaired never delays the others; -q and -dr list the ledgers",
    ),
    Verb("decommissionbookie", decommission, "cluster decommission ID", (_value("bookieid", value="ID"),)),
    Verb(
        "autorecovery",
        autorecovery,
        "cluster autorecovery --enable, --disable, --status",
        (_switch("e", "enable"), _switch("d", "disable")),
    ),
    Verb("queryautorecoverystatus", query_status, "cluster underreplicated"),
    Verb(
        "listunderreplicated",
        list_underreplicated,
        "cluster underreplicated",
        (
            _value("mr", "missingreplica", value="ID"),
            _value("emr", "excludingmissingreplica", value="ID"),
            _switch("pmr", "printmissingreplica"),
            _switch("prw", "printreplicationworkerid"),
            _switch("c", "onlydisplayledgercount"),
        ),
    ),
    Verb("whoisauditor", auditor, "cluster autorecovery --status"),
    Verb(
        "lostbookierecoverydelay",
        recovery_delay,
        "cluster delay [SECONDS]",
        (_switch("g", "get"), _value("s", "set", value="SECONDS")),
    ),
    Verb("triggeraudit", trigger_audit, "cluster audit"),
    Verb(
        "forceauditchecks",
        force_checks,
        "cluster check",
        (
            _switch("calc", "checkallledgerscheck"),
            _switch("ppc", "placementpolicycheck"),
            _switch("rc", "replicascheck"),
        ),
        note="-ppc and -rc are for auditors of Apache's, which have such checks",
    ),
    Verb("ledger", ledger_index, "dump index --ledger ID", (_switch("m", "meta"),), "ID"),
    Verb(
        "readlog",
        read_log,
        "dump entry-log FILE",
        (
            _MESSAGE,
            _LEDGER,
            _value("e", "entryid", value="N"),
            _value("sp", "startpos", value="N"),
            _value("ep", "endpos", value="N"),
        ),
        "LOG",
    ),
    Verb("readlogmetadata", read_log_metadata, "dump entry-log FILE", (), "LOG"),
    Verb(
        "readjournal",
        read_journal,
        "dump journal FILE",
        (_value("dir", value="DIR"), _MESSAGE),
        "JOURNAL",
    ),
    Verb("lastmark", _on_files("dump", "marks"), "dump marks"),
    Verb(
        "activeledgers",
        active_ledgers,
        "shell activeledgers",
        (_value("l", "logId", value="LOG"), _value("t", "timeout", value="MS")),
        note="-t has no effect",
    ),
    Verb(
        "listfilesondisc",
        list_files,
        "shell listfilesondisc",
        (_switch("txn", "journal"), _switch("log", "entrylog"), _switch("idx", "index")),
    ),
    Verb("localconsistencycheck", _on_files("bookie", "--check"), "bookie --check"),
    Verb("check-db-ledgers-index", _on_files("bookie", "--check"), "bookie --check", (_VERBOSE,)),
    Verb(
        "rebuild-db-ledger-locations-index",
        _on_files("bookie", "--rebuild-index", "all"),
        "bookie --rebuild-index all",
    ),
    Verb(
        "rebuild-db-ledgers-index",
        _on_files("bookie", "--rebuild-index", "all"),
        "bookie --rebuild-index all",
        (_VERBOSE,),
    ),
    Verb(
        "regenerate-interleaved-storage-index-file",
        regenerate_index,
        "bookie --rebuild-index ID ...",
        (
            _value("l", "ledgerIds", value="IDS"),
            _value("p", "password", value="TEXT"),
            _value("b", "b64password", value="TEXT"),
            _switch("dryRun"),
        ),
        note="-p and -b have no effect: the master key comes from the old index or from the journals",
    ),
    _converted("DbLedgerStorage"),
    _converted("InterleavedLedgerStorage"),
    Verb(
        "updatecookie",
        update_cookie,
        "cookie show, delete, generate, update",
        (
            _value("b", "bookieId", value="KIND"),
            _switch("e", "expandstorage"),
            _switch("l", "list"),
            _value("d", "delete", value="[force]"),
            _FORCE,
        ),
        note="-e fails if there are directories to add: start another bookie there",
    ),
    Verb("cookie_create", cookie("create"), "cookie create ID FILE", (_COOKIE_FILE,), "ID"),
    Verb("cookie_get", cookie("show"), "cookie show ID", (), "ID"),
    Verb("cookie_update", cookie("update"), "cookie update ID FILE", (_COOKIE_FILE,), "ID"),
    Verb("cookie_delete", cookie("delete"), "cookie delete ID", (), "ID"),
    Verb(
        "cookie_generate",
        generate_cookie,
        "cookie generate ID FILE",
        (
            _value("i", "instance-id", value="ID"),
            _value("j", "journal-dirs", value="DIRS"),
            _value("l", "ledger-dirs", value="DIRS"),
            _value("x", "index-dirs", value="DIRS"),
            _value("o", "output-file", value="FILE"),
        ),
        "ID",
    ),
    Verb(
        "updateledgers",
        update_ledgers,
        "cluster rename OLD NEW",
        (_value("b", "bookieId", value="KIND"), *_PACE),
        note="-s, -r, -v and -p have no effect: ledgers are changed one after the other",
    ),
    Verb(
        "updateBookieInLedger",
        rename_bookie,
        "cluster rename OLD NEW",
        (_value("sb", "srcBookie", value="ID"), _value("db", "destBookie", value="ID"), *_PACE),
        note="-s, -r, -v and -p have no effect: ledgers are changed one after the other",
    ),
    Verb("help", _not_offered("`bkspark shell help`"), "--help", words="[VERB]"),
)


def table() -> str:
    """Return the table of docs/shell.md."""
    lines = ["| Verb | Options | `bkspark` | |", "|---|---|---|---|"]
    for verb in VERBS:
        options = " ".join([*map(str, verb.options), verb.words]).strip()
        shown = f"`{options}`" if options else ""
        lines.append(f"| `{verb.name}` | {shown} | `{verb.equal}` | {verb.note} |")
    return "\n".join(lines)
