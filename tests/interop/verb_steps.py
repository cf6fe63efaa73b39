"""The table of the shell's verbs with their options that `test_verbs.py` runs; where the shells differ, and why."""

from __future__ import annotations

from tests.interop.verbs import Fact, Step, both

BOOKIES = both(r"\bb[123]\b")
LEDGERS = Fact(r"ledgerId=(\d+)", r"^\s*(\d+)(?:\s|$)")
STATES = Fact(r"ledgerId=(\d+), metadata=.*?state=(\w+)", r"^\s*(\d+)\s+([A-Z_]+)\s")
ENTRIES = Fact(r"entryId=(\d+)", r"entry (\d+):")
PAYLOADS = both(r"^entry \d+$")
STATE = Fact(r"state=(\w+)", r"^state\s+(\w+)")
METADATA = (
    STATE,
    Fact(
        r"ensembleSize=(\d+), writeQuorumSize=(\d+), ackQuorumSize=(\d+)",
        r"^ensemble_size\s+(\d+)\nwrite_quorum\s+(\d+)\nack_quorum\s+(\d+)",
    ),
    Fact(r"digestType=(\w+)", r"^digest\s+(\w+)"),
    BOOKIES,
)
CLOSED = (
    *METADATA,
    Fact(r"lastEntryId=(\d+)", r"^last_entry\s+(\d+)"),
    Fact(r"length=(\d+)", r"^length\s+(\d+)"),
    Fact(r"customMetadata=\{(\w+)=base64:bWU=", r"^metadata (\w+)\s+me$"),
)
SWITCH = Fact(r"status=(enabled|disabled)", r"status: (enabled|disabled)")
CLUSTER = both(r'"(\w+)" ?: ("[^"]*"|\w+)')
QUERY = Fact(r"ledger \{key=(\d+), state=(\w+)", r"^\s*(\d+)\s+([A-Z_]+)\s")
COUNT = Fact(r"count=(\d+)", r"count: (\d+)")
DELAY = Fact(r"delay=(\d+)", r"lost_bookie_delay_s\s+(\d+)")
INDEX = Fact(r"entry (\d+)\s*:\s*\(log", r"\sposition\s.* entry (\d+)")
POSITIONS = Fact(r"position=(\d+)", r"^\s*(\d+)\s+\d+\s+entry\s")
OFFSETS = Fact(r"position=(\d+)", r"^offset (\d+)")
PAYLOADS_OF_LOG = both(r"(entry \d+)$")
LOGGED = Fact(r"ledgerId=0, size=(\d+)", r"LedgerId: 0 .*Size: (\d+)")
JOURNALED = Fact(r"entryId=(\d+), entrySize=\d+, ledgerId=0,", r"\sentry\s.* ledger 0  entry (\d+)")
SPACE = both(r"total=(\d+)")

NOT_AN_ERROR = "Apache's shell prints the error and returns 0"
NO_NUMBER = "Apache's shell treats text that is not a number as if the option was not given"
SURPLUS = "Apache's shell ignores a surplus word, with every verb that takes no word"

READING = (
    Step("whatisinstanceid", (both("INSTANCE"),)),
    Step("listbookies -rw", (BOOKIES,)),
    Step("listbookies -readwrite -hostnames", (BOOKIES,)),
    Step("listbookies -ro", (both("No bookie exists!"),)),
    Step("listbookies -a", (BOOKIES,)),
    Step("listbookies"),
    Step("listbookies -rw -ro"),
    Step("bookieinfo", (BOOKIES, SPACE)),
    Step("clusterinfo", (CLUSTER,)),
    Step("endpointinfo -b {b1}", (both("bookie-rpc"),)),
    Step("endpointinfo -b 127.0.0.1:1"),
    Step("endpointinfo"),
    Step("listledgers", (LEDGERS,)),
    Step("listledgers -m", (STATES, BOOKIES)),
    Step("listledgers -bookieid {b1}", (LEDGERS,)),
    Step("listledgers -meta -bookieid {b2}", (STATES, BOOKIES)),
    Step("listledgers -bookieid 127.0.0.1:1"),
    Step("listledgers surplus", differs=SURPLUS),
    Step("ledgermetadata -l 0", CLOSED),
    Step("ledgermetadata -ledgerid 1", METADATA),
    Step("ledgermetadata -l 77"),
    Step("ledgermetadata -l 0 -u"),
    Step("ledgermetadata"),
    Step("ledgermetadata -l 0", CLOSED, ids="hex"),
    Step("ledgermetadata -l 00000000-0000-0000-0000-000000000000", CLOSED, ids="uuid"),
    Step("readledger -l 0", (ENTRIES,)),
    Step("readledger -l 0 -m", (PAYLOADS,)),
    Step("readledger -ledgerid 0 -firstentryid 1 -lastentryid 3 -msg", (PAYLOADS,)),
    Step("readledger -l 0 -fe 2", (ENTRIES,)),
    Step(
        "readledger -l 0 -b {b1} -fe 0 -le 4",
        (ENTRIES,),
        differs="Apache's shell leaves out the last entry of one bookie's copy",
    ),
    Step("readledger -l 0 -fe 0 -le 100", (ENTRIES,)),
    Step("readledger -l 0 -fe 100"),
    Step("readledger -l 0 -fe 9 -le 3"),
    Step("readledger -l 0 -le -5", differs="Apache's shell prints nothing for a negative entry other than -1"),
    Step("readledger -l 0 -fe x", differs=NO_NUMBER),
    Step("readledger -l 0 -b nonsense", differs="Apache's shell prints the error and tries the next entry"),
    Step("readledger -l 1"),
    Step("readledger -l 77"),
    Step("readledger"),
    Step("autorecovery", (SWITCH,)),
    Step("queryautorecoverystatus", (both("No Ledger is being recovered"),)),
    Step("listunderreplicated", (COUNT,)),
    Step("listunderreplicated -c", (COUNT,)),
    Step("whoisauditor"),
    Step("lostbookierecoverydelay -g"),
    Step("triggeraudit"),
    Step("cookie_get {b1}", (both("DIR/journal|DIR/ledgers"),)),
    Step("cookie_get 127.0.0.1:1"),
    Step("cookie_get"),
    Step("recover -q -f {b1}", (QUERY,)),
    Step("recover -dr -f {b1}"),
    Step("recover -dryrun -force -ledger 0 {b1}"),
    Step("recover"),
    Step("updatecookie -l -d"),
    Step("updatecookie -l", (both("DIR/journal|DIR/ledgers"),)),
    Step("nonsense"),
    Step("listbookies -nonsense"),
    Step("help"),
)
"""Verbs that change nothing."""

CHANGING = (
    Step("simpletest -e 3 -w 3 -a 2 -n 20", (both(r"(\d+) entries written to ledger (\d+) \(lastEntryId (\d+)\)"),)),
    Step("simpletest -ensemble 9 -writeQuorum 2 -ackQuorum 2 -numEntries 1", differs=NOT_AN_ERROR),
    Step("simpletest -e 3 -w 3 -a 2 -n x", differs=NO_NUMBER),
    Step("bookiesanity -e 5 -t 30"),
    Step("bookiesanity -t 0", differs="Apache's shell treats a time of 0 as no limit"),
    Step("ledgermetadata -l 0 -dumptofile {dir}/metadata"),
    Step("deleteledger -l 0", answer="n\n"),
    Step("listledgers", (LEDGERS,)),
    Step("deleteledger -l 0", answer="y\n"),
    Step("listledgers", (LEDGERS,)),
    Step("deleteledger -l 0 -f"),
    Step("deleteledger -l 77 -force"),
    Step("deleteledger -l x -f", differs=NOT_AN_ERROR),
    Step("deleteledger", differs=NOT_AN_ERROR),
    Step("ledgermetadata -l 0 -restorefromfile {dir}/metadata"),
    Step("ledgermetadata -l 0", CLOSED),
    Step("ledgermetadata -l 0 -restorefromfile {dir}/metadata"),
    Step("ledgermetadata -l 0 -restorefromfile {dir}/metadata -update"),
    Step("ledgermetadata -l 0 -restorefromfile {dir}/none"),
    Step("readledger -l 1 -r", (ENTRIES,)),
    Step("ledgermetadata -l 1", METADATA),
    Step("autorecovery -e"),
    Step("autorecovery -d"),
    Step("autorecovery -d"),
    Step("autorecovery", (SWITCH,)),
    Step("triggeraudit"),
    Step("autorecovery -e -d"),
    Step("autorecovery", (SWITCH,)),
    Step("autorecovery -disable"),
    Step("autorecovery -enable"),
    Step("autorecovery", (SWITCH,)),
    Step("lostbookierecoverydelay -s 7"),
    Step("lostbookierecoverydelay -get", (DELAY,)),
    Step("lostbookierecoverydelay"),
    Step("lostbookierecoverydelay -g -s 3"),
    Step("lostbookierecoverydelay -s -1", differs="Apache's shell stores a negative delay"),
    Step("lostbookierecoverydelay -s 0", differs="Apache's shell treats a delay of 0 as if no delay was given"),
    Step("triggeraudit"),
    Step("forceauditchecks -calc"),
    Step("forceauditchecks -ppc"),
    Step("forceauditchecks -rc"),
    Step("forceauditchecks -calc -ppc -rc"),
    Step("forceauditchecks"),
    Step("cookie_generate -i x -j /j -l /a,/b -o {dir}/cookie 127.0.0.1:9"),
    Step("cookie_create -cf {dir}/cookie 127.0.0.1:9"),
    Step("cookie_create -cf {dir}/cookie 127.0.0.1:9"),
    Step("cookie_get 127.0.0.1:9", (both("/j|/a|/b"),)),
    Step("cookie_update -cf {dir}/cookie 127.0.0.1:9"),
    Step("cookie_update -cf {dir}/none 127.0.0.1:9"),
    Step("cookie_delete 127.0.0.1:9"),
    Step("cookie_delete 127.0.0.1:9"),
    Step("cookie_update -cf {dir}/cookie 127.0.0.1:9"),
    Step("updateledgers -b ip"),
    Step("updateledgers -b hostname"),
    Step("updateledgers -b nonsense"),
    Step("updateledgers -b ip -l 0"),
    Step("updateledgers -b ip -s 0"),
    Step("updateledgers"),
    Step("updateBookieInLedger -sb {b1} -db 127.0.0.1:8"),
    Step("updateBookieInLedger -sb 127.0.0.1:7 -db 127.0.0.1:8"),
    Step("updateBookieInLedger -sb 127.0.0.1:7"),
    Step("updateBookieInLedger -sb 127.0.0.1:7 -db 127.0.0.1:8 -l -1"),
    Step("updateBookieInLedger -sb 127.0.0.1:7 -db 127.0.0.1:8 -l x", differs=NO_NUMBER),
    Step("initnewcluster"),
    Step("initbookie"),
    Step("bookieformat -n"),
    Step("bookieformat", answer="n\n"),
    Step("metaformat -n"),
    Step("metaformat", answer="n\n"),
    Step("nukeexistingcluster -p /ledgers -i wrong"),
    Step("nukeexistingcluster -p /other -f"),
    Step("nukeexistingcluster"),
    Step("decommissionbookie -bookieid {b3}"),
    Step("recover -f {b3}"),
)
"""Verbs that change metadata, and those that refuse."""

LISTED = (
    Step("listunderreplicated", (COUNT, LEDGERS)),
    Step("listunderreplicated -pmr", (COUNT, LEDGERS, BOOKIES)),
    Step("listunderreplicated -printmissingreplica -printreplicationworkerid", (COUNT, LEDGERS, BOOKIES)),
    Step("listunderreplicated -mr {b1} -pmr", (LEDGERS, BOOKIES)),
    Step("listunderreplicated -emr {b1} -pmr", (LEDGERS, BOOKIES)),
    Step("listunderreplicated -missingreplica {b1} -excludingmissingreplica {b2}", (LEDGERS,)),
    Step("listunderreplicated -c", (COUNT,)),
    Step("queryautorecoverystatus", (Fact(r"ledgerId=(\d+)", r"LedgerId:(\d+)"), both("a-worker"))),
    Step("clusterinfo", (CLUSTER,)),
)
"""With ledgers that are listed as under-replicated: 0 at b1, 1 at b1 and b2, 2 at b3, which a worker has locked."""

AUDITED = (
    Step("whoisauditor", (both("our-auditor"),)),
    Step("clusterinfo", (CLUSTER,)),
    Step("triggeraudit"),
)
"""With an auditor."""

RECOVERED = (
    Step("listbookies -rw", (BOOKIES,)),
    Step("listbookies -a", (BOOKIES,)),
    Step("recover -q -f {b3}"),
    Step("recover -dr -f {b3}"),
    Step("recover -dr -f -l {moved} {b3}"),
    Step("recover {b3}", answer="n\n"),
    Step("recover -q {b3}", answer="n\n"),
    Step("recover -dr {b3}", answer="n\n"),
    Step("recover -l {moved} {b3}", answer="n\n"),
    Step("ledgermetadata -l {moved}", (both("b3"),)),
    Step("recover -f -l {moved} {b3}"),
    Step("ledgermetadata -l {moved}", (BOOKIES,)),
    Step("recover -f {b3}"),
    Step("recover -f -sku {b3}"),
    Step("deleteledger -l {stuck} -f"),
    Step("recover -f -sk {b3}"),
    Step("recover -f -rate 1000000 {b3} {b2}"),
    Step("ledgermetadata -l {other}", (BOOKIES,)),
    Step("recover -f {b3}"),
    Step("recover -f 127.0.0.1:1", differs="Apache's shell treats an unknown bookie as one without ledgers"),
    Step("cookie_get {b3}", (both(r"/(journal|ledgers)\b"),)),
    Step("recover -f -d {b3}"),
    Step("cookie_get {b3}"),
    Step("listbookies -a", (BOOKIES,)),
)
"""With bookie 3 killed. It has ledgers {moved} and {other} together with one bookie, {stuck} together with both."""

FILES = (
    Step("lastmark"),
    Step("ledger 0", (INDEX,)),
    Step("ledger -m 0", (INDEX,)),
    Step("ledger 77"),
    Step("ledger -m 77", differs="our verb prints an index without entries"),
    Step("ledger"),
    Step("readlog {log}"),
    Step("readlog -l 0 {log}", (POSITIONS,)),
    Step("readlog -l 0 -e 3 -m {log}", (POSITIONS,)),
    Step("readlog -sp 1071 -ep 1212 {log}", (OFFSETS,)),
    Step(
        "readlog -startpos x {log}",
        differs="Apache's shell treats text that is not a number as if no position was given",
    ),
    Step("readlog -sp 1072 -ep 1073 {log}", (OFFSETS,)),
    Step("readlog -sp 1071 -ep 1071 {log}", (OFFSETS,)),
    Step("readlog -sp 9 -ep 8 {log}"),
    Step("readlog -ep 1071 -l 0 {log}", (POSITIONS,)),
    Step("readlog -e 3 {log}"),
    Step("readlog -l 0 -sp 1071 -ep 1212 -m {log}", (OFFSETS,)),
    Step("readlog -l 0 -m {log}", (PAYLOADS_OF_LOG,)),
    Step("readlog 99"),
    Step("readlog"),
    Step("readlogmetadata {log}", (LOGGED,)),
    Step("readlogmetadata 99"),
    Step("readjournal {journal}", (JOURNALED,)),
    Step("readjournal -m {journal}", (JOURNALED,)),
    Step("readjournal 99", differs="Apache's shell treats a missing journal as an empty one"),
    Step("readjournal"),
    Step("activeledgers -l {log} -t 5000"),
    Step("activeledgers"),
    Step("listfilesondisc"),
    Step("listfilesondisc -txn"),
    Step("listfilesondisc -entrylog"),
    Step("listfilesondisc -idx"),
    Step("localconsistencycheck"),
    Step("check-db-ledgers-index", differs="our verb checks the bookie's whole folder, with every storage"),
    Step("rebuild-db-ledgers-index"),
    Step("rebuild-db-ledger-locations-index"),
    Step("regenerate-interleaved-storage-index-file -l 0 -dryRun"),
    Step("regenerate-interleaved-storage-index-file -l 0"),
    Step("bookiesanity -e 5 -t 5"),
    Step("updatecookie"),
    Step("updatecookie -e"),
    Step("updatecookie -b nonsense"),
    # Nothing is to be changed, because advertisedAddress is the bookie's name. Apache's shell deletes the cookie then.
    Step("updatecookie -b ip"),
    Step("updatecookie -l"),
    Step("updatecookie -d", answer="n\n"),
    Step("updatecookie -d force"),
    Step("initbookie"),
    Step("bookieformat -n -f -d"),
    Step("bookieformat -n -f"),
    Step("initbookie"),
)
"""About the files of bookie 1, which is stopped."""

DB_FILES = (
    Step("check-db-ledgers-index"),
    Step("check-db-ledgers-index -v"),
    Step("localconsistencycheck"),
    Step("readlog -l 0 {log}", (POSITIONS,)),
    Step("readlogmetadata {log}", (LOGGED,)),
    Step("readjournal {journal}", (JOURNALED,)),
    Step("ledger 0", (Fact(r"entry (\d+)\s", r"\s.* entry (\d+)"),)),
    Step("rebuild-db-ledgers-index -v"),
    Step("rebuild-db-ledger-locations-index"),
    Step("rebuild-db-ledger-locations-index -v"),
    Step("check-db-ledgers-index"),
    Step("lastmark"),
    Step("listfilesondisc -log"),
    Step("regenerate-interleaved-storage-index-file -l 0"),
)
"""About the files of a bookie with DbLedgerStorage, which is stopped."""

CONVERTED = (
    Step("convert-to-db-storage"),
    Step("convert-to-interleaved-storage"),
)
"""With all bookies stopped in order."""

ENDED = (
    Step("nukeexistingcluster -p /ledgers -i wrong"),
    Step("nukeexistingcluster -p /ledgers -f"),
    Step("whatisinstanceid"),
    Step("nukeexistingcluster -p /ledgers -f"),
    Step("initnewcluster"),
    Step("initnewcluster"),
    Step("metaformat -n -f"),
    Step("listledgers"),
    Step("listbookies -a"),
)
"""Without bookies."""

ALL = (*READING, *CHANGING, *LISTED, *AUDITED, *RECOVERED, *FILES, *DB_FILES, *CONVERTED, *ENDED)
DIFFERENCES = {step.words: step.differs for step in ALL if step.differs}
"""Where exit code or facts are not Apache's, and why: docs/shell.md has the same table."""


def table() -> str:
    """Return the table of differences of docs/shell.md."""
    rows = (f"| `{words}` | {why} |" for words, why in DIFFERENCES.items())
    return "\n".join(["| Command line | Why it is not as with Apache's shell |", "|---|---|", *rows])
