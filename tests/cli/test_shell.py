"""`bkspark shell`: every verb of Apache's shell, with its options and exit codes; on real processes."""

from __future__ import annotations

import io
import random
import sys
import uuid
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from bkspark.cli.shell_verbs import VERBS, table
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.net.host_names import host_name
from tests.bookie.child import BookieChild, new_cluster
from tests.cluster import Cluster

ROOT = Path(__file__).parent.parent.parent
APACHES = """
initnewcluster metaformat nukeexistingcluster initbookie bookieformat whatisinstanceid listbookies bookieinfo
clusterinfo endpointinfo listledgers ledgermetadata readledger deleteledger simpletest bookiesanity recover
decommissionbookie autorecovery queryautorecoverystatus listunderreplicated whoisauditor lostbookierecoverydelay
triggeraudit forceauditchecks ledger readlog readlogmetadata readjournal lastmark activeledgers listfilesondisc
localconsistencycheck check-db-ledgers-index rebuild-db-ledger-locations-index rebuild-db-ledgers-index
regenerate-interleaved-storage-index-file convert-to-db-storage convert-to-interleaved-storage updatecookie
cookie_create cookie_get cookie_update cookie_delete cookie_generate updateledgers updateBookieInLedger help
"""


class Shell:
    """Runs verbs in this process, with options before them that say of which cluster or bookie."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *before: str) -> None:
        monkeypatch.delenv("BKSPARK_URI", raising=False)
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self._before = before

    def __call__(self, words: str, code: int = 0, answer: str = "") -> str:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        self._capfd.readouterr()
        found = main(["shell", *self._before, *words.split()])
        output = self._capfd.readouterr()
        assert found == code, (words, output)
        return output.out + output.err


def test_table_has_all_verbs_of_apaches_shell_and_the_page_shows_it() -> None:
    assert {verb.name for verb in VERBS} == set(APACHES.split())
    assert table() in (ROOT / "docs" / "shell.md").read_text()


def test_wrong_use_ends_with_255_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capfd)
    for words, said in (
        ("nonsense", "there is no verb 'nonsense'"),
        ("listbookies --nonsense", "--nonsense"),
        ("cookie_get", "it takes ID"),
        ("whatisinstanceid surplus", "unknown argument 'surplus'"),
        ("lastmark", "give -conf FILE"),
        ("-conf /no/such/file lastmark", "cannot be read"),
        ("-ledgeridformat octal lastmark", "octal"),
        ("convert-to-db-storage", "not offered"),
        ("recover ,", "recover takes ID"),
    ):
        found = shell(words, 255)
        assert said in found, (words, found)
        assert found.count("\n") == 1, (words, found)
    assert "listunderreplicated" in shell("help")


@pytest.mark.cluster
def test_verbs_that_apaches_shell_has_on_our_cluster_answer_alike(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The words are those of `tests/interop/test_every_call.py`, where Apache's shell runs them."""
    shell, saved = Shell(monkeypatch, capfd, "--uri", cluster.uri), tmp_path / "metadata"
    bookie = cluster.bookies[0].id
    with Client(cluster.uri) as client:
        with client.create() as writer:
            writer.append_many([b"entry %d" % number for number in range(5)])
        ledger = writer.ledger_id
    for words, said in (
        ("simpletest -ensemble 3 -writeQuorum 3 -ackQuorum 2 -numEntries 20", "(lastEntryId 19)"),
        (f"ledgermetadata -ledgerid {ledger}", "CLOSED"),
        ("listbookies -rw", bookie),
        ("listbookies -ro", "No bookie exists!"),
        ("listbookies -a", bookie),
        ("listledgers -meta", str(ledger)),
        (f"listledgers -bookieid {bookie}", ""),
        ("bookieinfo", bookie),
        (f"endpointinfo -b {bookie}", "bookie-rpc"),
        (f"readledger -ledgerid {ledger} -msg", "\nentry 4"),
        (f"-entryformat hex readledger -ledgerid {ledger} -msg", b"entry 4".hex()),
        (f"readledger -l {ledger} -fe 1 -le 2 -b {bookie}", f"ledger {ledger} entry 2: 7 bytes"),
        ("clusterinfo", "totalBookiesCount"),
        ("queryautorecoverystatus", "No Ledger is being recovered"),
        ("autorecovery", "enabled"),
        ("autorecovery -d -e", "status: enabled"),
        ("listunderreplicated -c", "count: 0"),
        ("listunderreplicated -pmr -prw", "count: 0"),
        (f"recover -dryrun -force -ledger {ledger} {bookie}", ""),
        (f"recover -query -force {bookie}", str(ledger)),
        (f"ledgermetadata -ledgerid {ledger} -dumptofile {saved}", ""),
        (f"deleteledger -ledgerid {ledger} -force", ""),
        (f"ledgermetadata -ledgerid {ledger} -restorefromfile {saved}", ""),
        (f"ledgermetadata -ledgerid {ledger} -restorefromfile {saved} -update", ""),
        (f"-ledgeridformat hex ledgermetadata -ledgerid {ledger:x}", "CLOSED"),
        ("whatisinstanceid", "-"),
        ("lostbookierecoverydelay -set 7", "7"),
        ("lostbookierecoverydelay -get", "7"),
        ("forceauditchecks -calc", "requested"),
        ("forceauditchecks -ppc -rc", "is due"),
        (f"cookie_get {bookie}", bookie),
        (f"cookie_generate -i x -j /j -l /a,/b -o {tmp_path / 'cookie'} b:1", ""),
        (f"cookie_create -cf {tmp_path / 'cookie'} b:1", ""),
        ("cookie_get b:1", "/a, /b"),
        (f"cookie_update -cookie-file {tmp_path / 'cookie'} b:1", ""),
        ("cookie_delete b:1", ""),
    ):
        assert said in shell(words), words
    assert "exists already" in shell(f"ledgermetadata -ledgerid {ledger} -restorefromfile {saved}", 255)
    assert "no cookie" in shell("cookie_get b:1", 255)
    assert "one and only one" in shell("listbookies", 1)
    assert "No auditor elected" in shell("whoisauditor", 255)
    assert "no auditor is elected" in shell("triggeraudit", 255)
    assert "runs: stop it first" in shell(f"cookie_delete {bookie}", 255)
    shell(f"deleteledger -l {ledger}", answer="n\n")
    assert f"ledger {ledger} deleted" in shell(f"deleteledger -l {ledger}", answer="y\n")
    assert f"ledger {ledger} does not exist" in shell(f"deleteledger -l {ledger} -f")
    shell("initnewcluster", 1)


@pytest.mark.cluster
def test_ids_of_ledgers_and_hosts_of_bookies_are_shown_as_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell, bookie = Shell(monkeypatch, capfd, "--uri", cluster.uri), cluster.bookies[0].id
    with Client(cluster.uri) as client:
        ledger = (0xABC << 40) + random.getrandbits(40)
        client.create(ledger_id=ledger).close()
    assert f"{bookie}  {host_name('127.0.0.1')}\n" in shell("listbookies -rw -hostnames")
    for ids, shown in (("hex", f"{ledger:x}"), ("uuid", str(uuid.UUID(int=ledger)))):
        assert f"{shown}\n" in shell(f"-ledgeridformat {ids} listledgers")
        assert f"{shown}  CLOSED" in shell(f"-ledgeridformat {ids} listledgers -m")


@pytest.mark.cluster
def test_recovery_asks_before_it_does_anything_and_is_of_the_first_word_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In old versions of Apache's shell a second word named the bookie to copy to. Nothing is done to that bookie."""
    shell, bookie = Shell(monkeypatch, capfd, "--uri", cluster.uri), cluster.bookies[0].id
    with Client(cluster.uri) as client, client.create() as writer:
        writer.append(b"entry")
    for words in (f"-q {bookie}", f"-dr {bookie}", f"-l {writer.ledger_id} {bookie}", bookie):
        assert "Are you sure" in shell(f"recover {words}", 255, answer="n\n"), words
    found = shell(f"recover -f {bookie} 127.0.0.1:1", 255)
    assert "127.0.0.1:1 will be ignored" in found
    assert f"bookie {bookie} is serving" in found
    assert "there is no bookie" not in found


@pytest.mark.cluster
def test_verbs_about_a_bookies_files(
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    # Longer than the address of a Unix socket, as paths of CI systems are.
    folder = tmp_path / ("bookie" * 20)
    child = BookieChild(folder, uri)
    file = tmp_path / "bk_server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in child.settings.items()))
    shell = Shell(monkeypatch, capfd, "-conf", str(file))
    shell("initbookie")
    with child.running(file), Client(uri) as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"x" * 100] * 7)
        assert "passed" in shell("bookiesanity -e 5 -t 30")
        assert "the bookie runs" in shell("bookieformat -f", 1)
    assert "initialised already" in shell("initbookie", 1)
    log = next((folder / "ledgers" / "current").glob("*.log"))
    journal = next((folder / "journal" / "current").glob("*.txn"))
    number = int(log.stem, 16)
    for words, said in (
        ("lastmark", ""),
        (f"ledger {writer.ledger_id}", ""),
        (f"readlog {number}", ""),
        (f"readlog -l {writer.ledger_id} -e 3 {log}", ""),
        (f"readlogmetadata {number}", f"LedgerId: {writer.ledger_id}  Entries: 7"),
        (f"readjournal {int(journal.stem, 16)}", ""),
        (f"activeledgers -l {number}", str(writer.ledger_id)),
        (f"readjournal -dir {folder / 'journal'} {int(journal.stem, 16)}", ""),
        ("listfilesondisc -log", log.name),
        ("listfilesondisc", journal.name),
        ("localconsistencycheck", ""),
        ("check-db-ledgers-index -v", ""),
        (f"regenerate-interleaved-storage-index-file -ledgerIds {writer.ledger_id}", ""),
        ("rebuild-db-ledgers-index", ""),
        ("updatecookie -list", child.id),
        (f"updateBookieInLedger -sb {child.id} -db 127.0.0.1:1", "changed  1"),
    ):
        assert said in shell(words), words
    assert "is not a journal directory" in shell(f"readjournal -dir {folder / 'ledgers'} {journal.name}", 255)
    assert "it takes force" in shell("updatecookie -delete everything", 255)
    shell("updatecookie -d", answer="n\n")
    assert "is deleted" in shell("updatecookie -d force")
    shell(f"cookie_create -cf {log.parent / 'VERSION'} {child.id}")
    assert f"deleted {log.parent}" in shell("bookieformat -f -d")
    assert not log.exists()
    assert "formatted" in shell("metaformat -n -f")
    assert "confirm with --instance" in shell("nukeexistingcluster -p /ledgers -i wrong", 1)
    shell("nukeexistingcluster -p /ledgers -f")
    shell("whatisinstanceid", 255)
    shell("initnewcluster")
