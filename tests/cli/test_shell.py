"""`bkspark shell`: every verb of Apache's shell, with its options and exit codes; on real processes."""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import socket
import stat
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.__main__ import main
from bkspark.cli.shell_cluster_verbs import bookie_info, simple_test
from bkspark.cli.shell_language import Failure
from bkspark.cli.shell_language import Shell as VerbShell
from bkspark.cli.shell_verbs import VERBS, table
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.uri import MetadataUri
from bkspark.net.host_names import host_name
from tests.bookie.child import BookieChild, new_cluster
from tests.cluster import Cluster
from tests.ledger.other_user import OTHER_UID

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

    def refuses(self, words: str, why: str) -> None:
        """Check that a verb fails with one line, in which `why` is."""
        found = self(words, 255)
        assert why in found, (words, found)
        assert found.count("\n") == 1, (words, found)


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
        ("convert-to-db-storage", "give -conf FILE"),
        ("recover ,", "recover takes ID"),
    ):
        shell.refuses(words, said)
    assert "listunderreplicated" in shell("help")
    # As with Apache's shell: the usage of one verb. It printed the usage of all verbs, also for an unknown name.
    assert shell("help lostbookierecoverydelay").splitlines() == [
        "bkspark shell lostbookierecoverydelay [-g] [-s SECONDS]",
        "the command of bkspark: cluster delay [SECONDS]",
    ]
    assert "there is no verb 'nonsense'" in shell("help nonsense", 255)


def test_bookie_that_says_no_free_bytes_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Both amounts are optional in the protocol."""
    known = {"id": "a:3181", "free_bytes": 1, "total_bytes": 10}
    partly = {"id": "b:3181", "free_bytes": None, "total_bytes": 20}
    silent = {"id": "c:3181", "free_bytes": None, "total_bytes": None}

    def answer(words: Sequence[str]) -> int:
        print(json.dumps({"bookies": [known, partly, silent], "free_bytes": 1, "total_bytes": 30}))
        return 0

    assert bookie_info(VerbShell(answer, uri="zk://z:2181/ledgers"), argparse.Namespace()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a:3181  free=1  total=10",
        "b:3181  free=unknown  total=20",
        "Total free disk space in the cluster: free=1",
        "Total disk capacity in the cluster: total=30",
    ]


def tried(answer: Callable[[Path], int], entries: str) -> int:
    """Run simpletest on a shell whose `ledger write` gets a file of entries and returns `answer(file)`."""

    def run(words: Sequence[str]) -> int:
        if words[1] != "write":
            print(json.dumps({"ledger": 7}))
            return 0
        (source,) = (Path(word) for word in words if word.startswith("/"))
        code = answer(source)
        print(json.dumps({"ledger": 7}))
        return code

    options = argparse.Namespace(ensemble=None, writeQuorum=None, ackQuorum=None, numEntries=entries)
    return simple_test(VerbShell(run, uri="zk://z:2181/ledgers"), options)


def test_simpletest_stores_nothing_on_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    """It wrote all entries to a temporary file first: 100 GB on the disk of /tmp for -n 999999999."""

    def answer(source: Path) -> int:
        assert stat.S_ISFIFO(source.stat().st_mode)
        assert source.read_bytes() == (b"x" * 100 + b"\n") * 20_000
        return 0

    assert tried(answer, "20000") == 0
    assert "20000 entries written to ledger 7 (lastEntryId 19999)" in capsys.readouterr().out


def test_simpletest_ends_when_its_entries_are_not_wanted() -> None:
    """No bookie takes them: nothing reads the entries, which are more than a pipe holds."""
    with pytest.raises(Failure):
        tried(lambda source: 1, "999999999")


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
    for words, said in (
        ("simpletest -n -5", "-numEntries '-5' is not a number of entries"),
        ("simpletest -e 1 -w 2 -a 1", "ensemble size 1 is below write quorum 2"),
        ("cookie_create -cf /proc/version b:1", "its first line is 'Linux version"),
    ):
        shell.refuses(words, said)
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


@dataclass(frozen=True)
class WrittenBookie:
    """A stopped bookie that holds seven entries of 100 bytes, in one ledger."""

    child: BookieChild
    file: Path
    """Its configuration."""
    ledger_id: int
    log: Path
    """Its entry log that has the entries."""
    journal: Path

    @property
    def journal_number(self) -> int:
        return int(self.journal.stem, 16)


def seven_entries(uri: str) -> int:
    """Write the entries on one bookie; return the ledger."""
    with Client(uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b"x" * 100] * 7)
    return writer.ledger_id


def configured(folder: Path, uri: str) -> tuple[BookieChild, Path]:
    """Return a bookie that has not run, and its configuration file."""
    # Longer than the address of a Unix socket, as paths of CI systems are.
    child, file = BookieChild(folder / ("bookie" * 20), uri), folder / "bk_server.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in child.settings.items()))
    return child, file


def written_bookie(child: BookieChild, file: Path, ledger_id: int) -> WrittenBookie:
    (log,) = (child.directory / "ledgers" / "current").glob("*.log")
    (journal,) = (child.directory / "journal" / "current").glob("*.txn")
    return WrittenBookie(child, file, ledger_id, log, journal)


@pytest.fixture(scope="module")
def written(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> WrittenBookie:
    """For tests that change none of its files."""
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    child, file = configured(tmp_path_factory.mktemp("written"), uri)
    with child.running(file):
        ledger_id = seven_entries(uri)
    return written_bookie(child, file, ledger_id)


def test_verbs_that_read_a_bookies_files(
    written: WrittenBookie, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capfd, "-conf", str(written.file))
    log, journal, number = written.log, written.journal_number, int(written.log.stem, 16)
    for words, said in (
        ("lastmark", ""),
        (f"ledger {written.ledger_id}", ""),
        (f"readlog {number}", ""),
        (f"readlog -l {written.ledger_id} -e 3 {log}", ""),
        (f"activeledgers -l {number}", str(written.ledger_id)),
        (f"readjournal -dir {written.child.directory / 'journal'} {journal}", ""),
        ("listfilesondisc -log", log.name),
        ("listfilesondisc", written.journal.name),
        ("localconsistencycheck", ""),
        ("check-db-ledgers-index -v", ""),
        ("updatecookie -list", written.child.id),
    ):
        assert said in shell(words), words
    ledgers = written.child.directory / "ledgers"
    assert "is not a journal directory" in shell(f"readjournal -dir {ledgers} {written.journal.name}", 255)


def test_a_number_names_a_file_of_the_bookie_also_where_a_file_has_this_name(
    written: WrittenBookie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capfd, "-conf", str(written.file))
    log, journal = int(written.log.stem, 16), written.journal_number
    monkeypatch.chdir(tmp_path)
    for each in (log, journal):
        Path(str(each)).write_text("neither an entry log nor a journal")
    assert f"LedgerId: {written.ledger_id}  Entries: 7" in shell(f"readlogmetadata {log}")
    shell(f"readjournal {journal}")


def test_entries_of_a_log_are_chosen_by_position_and_shown_with_their_payloads_if_asked(
    written: WrittenBookie, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Apache's `readlog -m` and `readjournal -m` print the payloads."""
    shell = Shell(monkeypatch, capfd, "-conf", str(written.file))
    log, first, size = written.log, 1024, 4 + 32 + 4 + 100
    for words, said in (
        (f"readlog -m -l {written.ledger_id} -e 3 {log}", "x" * 100),
        (f"readlog -m -sp {first} -ep {first} {log}", "x" * 100),
        (f"readjournal -m {written.journal_number}", "x" * 100),
        # An entry is in a range if one of its bytes is.
        (f"readlog -sp {first + 1} -ep {first + 2} {log}", "entry 0  "),
        (f"readlog -sp {first + size - 1} -ep {first + size - 1} {log}", "entry 0  "),
        (f"readlog -sp {first + size} -ep {first + size} {log}", "entry 1  "),
        # The end of a range counts only with its start, and an entry only with its ledger.
        (f"readlog -ep 7 {log}", "entry 6"),
        (f"readlog -e 3 {log}", "entry 6"),
    ):
        assert said in shell(words), words
    hexadecimal = Shell(monkeypatch, capfd, "-conf", str(written.file), "-entryformat", "hex")
    assert "78" * 100 in hexadecimal(f"readlog -m {log}")
    assert "78" * 100 in hexadecimal(f"readlog -m -sp 0 {log}")
    assert "x" * 100 not in shell(f"readlog {log}")
    assert "is above -endpos" in shell(f"readlog -sp 9 -ep 8 {log}", 255)


def test_verbs_that_change_a_bookies_files(
    zookeeper: ZooKeeperProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    child, file = configured(tmp_path, uri)
    shell = Shell(monkeypatch, capfd, "-conf", str(file))
    shell("initbookie")
    with child.running(file):
        ledger_id = seven_entries(uri)
        assert "passed" in shell("bookiesanity -e 5 -t 30")
        assert "the bookie runs" in shell("bookieformat -f", 1)
    assert "initialised already" in shell("initbookie", 1)
    log = written_bookie(child, file, ledger_id).log
    shell(f"regenerate-interleaved-storage-index-file -ledgerIds {ledger_id}")
    shell("rebuild-db-ledgers-index")
    assert "changed  1" in shell(f"updateBookieInLedger -sb {child.id} -db 127.0.0.1:1")
    assert "it takes force" in shell("updatecookie -delete everything", 255)
    shell("updatecookie -d", answer="n\n")
    assert "is deleted" in shell("updatecookie -d force")
    shell(f"cookie_create -cf {log.parent / 'VERSION'} {child.id}")
    assert f"deleted {log.parent}" in shell("bookieformat -f -d")
    assert not log.exists()


def test_verbs_that_remove_a_cluster_ask_for_its_instance_or_its_root(
    zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    shell, own_root = Shell(monkeypatch, capfd, "--uri", uri), MetadataUri.parse(uri).root
    assert "formatted" in shell("metaformat -n -f")
    assert "confirm with --instance" in shell(f"nukeexistingcluster -p {own_root} -i wrong", 1)
    # It was enough that the cluster's root ended in this text.
    for root in ("/ledgers", "s"):
        assert f"the root {root!r} is not that of" in shell(f"nukeexistingcluster -p {root} -f", 1)
    assert shell("whatisinstanceid")
    shell(f"nukeexistingcluster -p {own_root} -f")
    shell("whatisinstanceid", 255)
    shell("initnewcluster")


class HostedBookie:
    """A bookie whose id is the address of this host, or its name if that is asked for."""

    def __init__(self, zookeeper: ZooKeeperProcess, folder: Path) -> None:
        self.child = BookieChild(folder / "bookie", new_cluster(zookeeper.connect_string, uuid.uuid4().hex))
        del self.child.settings["advertisedAddress"]
        self.child.settings |= {"listeningInterface": "lo", "allowLoopback": "true"}
        self.file = folder / "bk_server.conf"
        self.set()

    def set(self, **settings: str) -> None:
        self.child.settings |= settings
        self.file.write_text("".join(f"{key}={value}\n" for key, value in self.child.settings.items()))

    def cookies(self) -> list[str]:
        """Return the bookies that have a cookie."""

        async def known(registry: BookieRegistry) -> list[str]:
            return await registry.known()

        return self.child.ask_registry(known)


@pytest.fixture
def own_name() -> str:
    """The name of 127.0.0.1."""
    name = socket.getfqdn("127.0.0.1")
    if name == "127.0.0.1":
        pytest.skip("this host has no name for 127.0.0.1")
    return name


@pytest.mark.cluster
def test_stopped_bookie_is_named_by_its_host_name_and_serves_what_it_has(
    own_name: str,
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bookie = HostedBookie(zookeeper, tmp_path)
    child, shell = bookie.child, Shell(monkeypatch, capfd, "-conf", str(bookie.file))
    with child.running(bookie.file), Client(child.uri) as client:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(b"entry")
        bookie.set(useHostNameAsBookieID="true")
        assert "the bookie runs" in shell("updatecookie -b hostname", 255)
    old, child.id = child.id, f"{own_name}:{child.port}"
    assert "neither ip nor hostname" in shell("updatecookie -b nonsense", 255)
    assert "does not fit useHostNameAsBookieID" in shell("updatecookie -b ip", 255)
    assert "must be given" in shell("updatecookie", 255)
    assert bookie.cookies() == [old]
    assert f"is the cookie of {child.id}" in shell("updatecookie -bookieId hostname")
    assert bookie.cookies() == [child.id]
    shell("updatecookie -b hostname")
    shell("updateledgers -b hostname")
    with child.running(bookie.file), Client(child.uri) as client:
        assert bytes(client.open(writer.ledger_id, recover=False).read(0, 0)[0]) == b"entry"
    bookie.set(useHostNameAsBookieID="false")
    shell("updatecookie -b ip")
    assert bookie.cookies() == [old]


@pytest.mark.cluster
def test_naming_a_bookie_by_its_host_continues_after_an_interruption(
    own_name: str,
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bookie = HostedBookie(zookeeper, tmp_path)
    shell = Shell(monkeypatch, capfd, "-conf", str(bookie.file))
    with bookie.child.running(bookie.file):
        pass
    bookie.set(useHostNameAsBookieID="true")
    new = f"{own_name}:{bookie.child.port}"
    stamp = bookie.child.directory / "ledgers" / "current" / "VERSION"
    stamp.write_bytes(stamp.read_bytes().replace(bookie.child.id.encode(), new.encode()))
    shell("updatecookie -b hostname")
    assert bookie.cookies() == [new]
    shell(f"cookie_create -cf {stamp} {new}", 255)
    stored = tmp_path / "old"
    stored.write_bytes(stamp.read_bytes().replace(new.encode(), bookie.child.id.encode()))
    shell(f"cookie_create -cf {stored} {bookie.child.id}")
    shell("updatecookie -b hostname")
    assert bookie.cookies() == [new]
    shell(f"cookie_delete {new}")
    assert "was it decommissioned" in shell("updatecookie -b hostname", 255)


@pytest.mark.cluster
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_renamed_cookie_stays_with_its_owner_and_closed_to_others(
    own_name: str,
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    mode: int,
) -> None:
    """Also if root repairs the bookie of another user, and a group may read its files (`permittedFileGroup`)."""
    bookie = HostedBookie(zookeeper, tmp_path)
    with bookie.child.running(bookie.file):
        pass
    stamps = [bookie.child.directory / part / "current" / "VERSION" for part in ("journal", "ledgers")]
    owner = (OTHER_UID, OTHER_UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for stamp in stamps:
        stamp.chmod(mode)
        os.chown(stamp, *owner)
    bookie.set(useHostNameAsBookieID="true")
    before = os.umask(0)
    try:
        Shell(monkeypatch, capfd, "-conf", str(bookie.file))("updatecookie -b hostname")
    finally:
        os.umask(before)
    for found in (stamp.stat() for stamp in stamps):
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (mode, *owner)


@pytest.mark.cluster
def test_directories_are_not_added_and_that_is_said(
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bookie = HostedBookie(zookeeper, tmp_path)
    shell = Shell(monkeypatch, capfd, "-conf", str(bookie.file))
    assert "has no cookie" in shell("updatecookie -e", 255)
    with bookie.child.running(bookie.file):
        pass
    assert "nothing to add" in shell("updatecookie -expandstorage")
    ledgers = bookie.child.settings["ledgerDirectories"]
    bookie.set(ledgerDirectories=f"{ledgers},{tmp_path / 'more'}")
    assert f"{tmp_path / 'more'} cannot be added" in shell("updatecookie -e", 255)
    bookie.set(advertisedAddress="127.0.0.1", ledgerDirectories=ledgers)
    assert "nothing is changed" in shell("updatecookie -b ip")
    assert bookie.cookies() == [bookie.child.id]


@pytest.mark.cluster
def test_configuration_file_is_read_as_by_the_bookie(
    zookeeper: ZooKeeperProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It was read line by line: a continued line, a reference or an included file named other directories, which
    `bookieformat` deletes."""
    child = BookieChild(tmp_path / "bookie", new_cluster(zookeeper.connect_string, uuid.uuid4().hex))
    monkeypatch.setenv("BOOKIE_DISK", str(tmp_path / "bookie"))
    ledgers = [str(tmp_path / "bookie" / name) for name in ("one", "two")]
    child.settings |= {"ledgerDirectories": ",".join(ledgers), "journalDirectories": str(tmp_path / "bookie" / "log")}
    file, included = tmp_path / "bk_server.conf", tmp_path / "more.conf"
    lines = {key: value for key, value in child.settings.items() if not key.endswith("Directories")}
    file.write_text(
        "# ledgerDirectories=/not/this\ninclude = more.conf\ndisk : ${env:BOOKIE_DISK}\n"
        "ledgerDirectories ${disk}/one,\\\n    ${disk}/two\nbookiePort=1\n"
    )
    included.write_text("".join(f"{key}={value}\n" for key, value in lines.items()) + "journalDirectories: ${disk}/log")
    shell = Shell(monkeypatch, capfd, "-conf", str(file))
    with child.running(file):
        assert child.id in shell("listbookies -rw")
    assert child.id in shell("updatecookie -list")
    journals = shell("listfilesondisc -txn")
    assert str(tmp_path / "bookie" / "log" / "current") in journals
    formatted = shell("bookieformat -f")
    for each in ledgers:
        assert f"deleted {each}/current" in formatted
    file.write_text("include = bk_server.conf\n")
    assert "files include themselves" in shell("lastmark", 255)
