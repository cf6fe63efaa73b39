"""Authorization with real processes: bookies with mutual TLS and rules, clients with certificates, autorecovery."""

from __future__ import annotations

import getpass
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.bookie import bookie_command
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.errors import ReadFailed, UnauthorizedAccess
from bkspark.net.pool import NetOptions
from bkspark.tls.options import FACTORY_CLASS
from bkspark.wire.status import Status
from tests.bookie.child import BookieChild, new_cluster
from tests.bookie.serving import KEY
from tests.cluster import Cluster
from tests.polling import wait_until
from tests.replication.repairing import wait_until_moved
from tests.security.certificates import Authority
from tests.security.tls_serving import client_options

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("authorization")]

RULES = """
# the bookies themselves, for autorecovery
certificate:CN=bookie   read,write,fence   *
certificate:CN=writer   read,write,fence   log:mine metadata:team=mine
certificate:CN=reader   read               log:mine metadata:team=mine
certificate:CN=finisher read,fence         log:mine metadata:team=mine
"""

REFUSED = "answered with status 102: .*authorizationRulesFile"


class Closed:
    """A cluster whose bookies demand certificates, and obey a rules file."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        key, chain = self.authority.issue("bookie").pem()
        self.rules = directory / "rules"
        self.rules.write_text(RULES)
        settings = {
            "tlsProviderFactoryClass": FACTORY_CLASS,
            "tlsRequired": "true",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.pem,
            "authorizationRulesFile": str(self.rules),
            "autoRecoveryDaemonEnabled": "true",
            "lostBookieRecoveryDelay": "0",
            "openLedgerRereplicationGracePeriod": "500",
        }
        self.cluster = Cluster(directory / "cluster", bookies=4, settings=settings)

    def client(self, name: str, wire_protocol: str = "v2") -> Client:
        """Return a client with a certificate of this name."""
        tls = client_options(self.authority, self.authority.issue(name))
        return Client(self.cluster.uri, net=NetOptions(tls=tls), wire_protocol=wire_protocol)

    def log_text(self) -> str:
        return "".join(path.read_text() for path in self.cluster.dir.rglob("bookie.log"))


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    made = Closed(tmp_path_factory.mktemp("closed"))
    with made.cluster:
        yield made


def write(client: Client, entries: list[bytes], *, team: str = "mine") -> int:
    with client.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"team": team}) as writer:
        writer.append_many(entries)
    return writer.ledger_id


@pytest.mark.parametrize("wire_protocol", ["v2", "v3"])
def test_each_client_may_do_what_its_rules_say(closed: Closed, wire_protocol: str) -> None:
    with closed.client("writer", wire_protocol) as writer, closed.client("reader", wire_protocol) as reader:
        ledger_id = write(writer, [b"one", b"two"])
        assert list(reader.open(ledger_id, recover=False).read(0, 1)) == [b"one", b"two"]
        with pytest.raises(UnauthorizedAccess):
            write(reader, [b"x"])
        with pytest.raises(UnauthorizedAccess):
            write(writer, [b"x"], team="another")
        open_writer = writer.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"team": "mine"})
        open_writer.append(b"x")
        with pytest.raises(UnauthorizedAccess):
            reader.open(open_writer.ledger_id, recover=True)
    with closed.client("stranger", wire_protocol) as stranger, pytest.raises(ReadFailed, match=REFUSED):
        stranger.open(ledger_id, recover=False).read(0, 1)
    wait_until(lambda: "audit: refused certificate:CN=stranger at 127.0.0.1" in closed.log_text(), "an audit line")


def test_log_belongs_to_those_who_may_use_its_name(closed: Closed) -> None:
    with closed.client("writer") as writer, closed.client("reader") as reader:
        with writer.log("mine").open_for_writing() as log:
            log.append_many([b"a", b"b"])
        # The next writer recovers the ledger before it.
        with writer.log("mine").open_for_writing() as log:
            log.append_many([b"c"])
        found = [bytes(entry) for batch in reader.log("mine").read(start="earliest") for entry in batch]
        assert found == [b"a", b"b", b"c"]
        with pytest.raises(UnauthorizedAccess), writer.log("theirs").open_for_writing() as log:
            log.append_many([b"x"])


def test_changed_rules_hold_at_once_and_bad_ones_never(closed: Closed) -> None:
    with closed.client("writer") as writer, closed.client("late") as late:
        ledger_id = write(writer, [b"one"])
        with pytest.raises(ReadFailed, match=REFUSED):
            late.open(ledger_id, recover=False).read(0, 0)
        closed.rules.write_text(RULES + "certificate:CN=late raed *\n")
        wait_until(lambda: closed.log_text().count("line 7: 'raed' is not a right") == 4, "four complaints")
        closed.rules.write_text(RULES + "certificate:CN=late read metadata:team=mine\n")
        wait_until(lambda: closed.log_text().count("5 authorization rules") >= 4, "the rules to be in force")
        assert list(late.open(ledger_id, recover=False).read(0, 0)) == [b"one"]
        closed.rules.write_text(RULES)


def test_autorecovery_repairs_as_the_bookies_principal(closed: Closed) -> None:
    """It reads closed ledgers, fences and closes an open one, and writes copies."""
    entries = [b"%d" % number for number in range(200)]
    with closed.client("writer") as writer:
        ledgers = [write(writer, entries) for _ in range(4)]
        # Its owner goes without closing it, so autorecovery must fence and recover it.
        left_open = writer.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"team": "mine"})
        left_open.append_many(entries)
    ledgers.append(left_open.ledger_id)
    with closed.client("reader") as reader:
        last = reader.metadata(left_open.ledger_id).fragments[-1].bookies
        lost = next(bookie for bookie in closed.cluster.bookies if bookie.id in last)
        lost.kill()
        wait_until_moved(reader, ledgers, lost.id)
        wait_until(lambda: reader.metadata(left_open.ledger_id).is_closed, "autorecovery to close the ledger")
        for ledger_id in ledgers:
            assert list(reader.open(ledger_id, recover=False).read(0, 199)) == entries
    assert "audit: refused certificate:CN=bookie" not in closed.log_text()


# ---- one bookie ----


def test_bad_rules_end_the_start_with_line_and_remedy(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    bookie = BookieChild(tmp_path / "bookie", "zk://127.0.0.1:1/ledgers")
    rules.write_text("anonymous read *\nanonymous wirte *\n")
    assert bookie.refusal(authorizationRulesFile=str(rules)) == (
        2,
        f"bookie: authorizationRulesFile={rules}: line 2: 'wirte' is not a right: it must be read, write, fence, "
        "admin, with commas and no spaces",
    )
    assert bookie.refusal(authorizationRulesFile=str(tmp_path / "missing"))[0] == 2


def test_error_about_a_file_shows_the_variable_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may hold a secret by mistake, as one that the file holds."""
    monkeypatch.setenv("BOOKIE_WORD", "hunter2")
    bookie = BookieChild(tmp_path / "bookie", "zk://127.0.0.1:1/ledgers")
    sasl = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
    for keys in (
        {"authorizationRulesFile": "${env:BOOKIE_WORD}"},
        {"httpServerEnabled": "true", "httpServerAccessFile": "${env:BOOKIE_WORD}"},
        {"bookieAuthProviderFactoryClass": sasl, "saslJaasConfig": "/${env:BOOKIE_WORD}"},
        {"tlsProviderFactoryClass": FACTORY_CLASS, "tlsKeyStore": "${env:BOOKIE_WORD}"},
    ):
        code, line = bookie.refusal(**keys)
        assert code == 2
        assert "${env:BOOKIE_WORD}" in line
        assert "No such file" in line
        assert "hunter2" not in line


def test_sighup_control_http_and_squatting_at_a_bookie(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    uri = new_cluster(zookeeper.connect_string, "authorized")
    rules = tmp_path / "rules"
    # A caller of HTTP on this host is known as such where HTTP has no credentials.
    rules.write_text("anonymous read,write,fence *\nlocal:loopback read *\n")
    http = {"httpServerEnabled": "true", "httpServerPort": "0", "httpServerHost": "127.0.0.1"}
    bookie = BookieChild(tmp_path / "bookie", uri, authorizationRulesFile=str(rules), **http)
    with bookie.running() as process, bookie.connect() as peer, Client(uri) as client:
        # The next id is not a ledger yet: it cannot be taken.
        writer = client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        following = writer.ledger_id + 1
        assert peer.add(following, 0, [b"x"], key=b"k" * 20) == [Status.EUA]
        assert peer.read(following, -1, 1, b"k" * 20).status == Status.EUA
        # The key of one that exists cannot either.
        assert peer.add(writer.ledger_id, 0, [b"x"], key=b"k" * 20) == [Status.EUA]
        writer.append(b"one")
        writer.close()
        assert write_one(client) == following
        assert peer.read(following, 0, 0, KEY).status == Status.EOK

        assert status_of(bookie, "/heartbeat") == status_of(bookie, "/metrics") == 200
        assert status_of(bookie, "/api/v1/bookie/info") == 403
        assert status_of(bookie, f"/api/v2/ledgers/{following}/entries") == 200
        assert control(bookie, "state") == (
            1,
            f"bookie: no rule of authorizationRulesFile gives local:{user()} the right admin",
        )

        rules.write_text(f"local:{user()} admin\nlocal:loopback admin\n")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "signal:SIGHUP: 2 authorization rules" in bookie.log_text(), "the rules to be in force")
        assert peer.read(following, 0, 0, KEY).status == Status.EUA
        assert control(bookie, "state")[0] == 0
        assert status_of(bookie, "/api/v1/bookie/info") == 200
        assert status_of(bookie, f"/api/v2/ledgers/{following}/entries") == 403

        rules.write_text("nobody\n")
        code, said = control(bookie, "reload")
        assert (code, "line 1: a rule is PRINCIPAL RIGHTS LEDGERS" in said) == (1, True), said
        assert status_of(bookie, "/api/v1/bookie/info") == 200
    assert re.search(r"audit: refused anonymous at 127\.0\.0\.1: write on ledger \d+ \(1 requests\)", bookie.log_text())


def test_requests_during_an_outage_of_zookeeper(tmp_path: Path) -> None:
    """Known ledgers are served on; a first contact is answered EIO, which is not a certain answer."""
    rules = tmp_path / "rules"
    rules.write_text("anonymous write,fence,read id:0-\n")
    with ZooKeeperProcess(tmp_path / "zookeeper", port=free_ports(1)[0]) as server:
        uri = new_cluster(server.connect_string, "outage")
        bookie = BookieChild(tmp_path / "bookie", uri, authorizationRulesFile=str(rules), zkTimeout="60000")
        with bookie.running(), Client(uri) as client, bookie.connect() as peer:
            known, cold = write_one(client), write_one(client)
            assert peer.read(known, 0).status == Status.EOK
            os.kill(server.pid, signal.SIGSTOP)
            try:
                assert peer.read(known, 0).status == Status.EOK
                assert bookie.connect().read(cold + 1, 0).status == Status.EIO
                assert peer.read(known, 0).status == Status.EOK
            finally:
                os.kill(server.pid, signal.SIGCONT)


def test_requests_are_answered_rightly_again_as_soon_as_zookeeper_answers(tmp_path: Path) -> None:
    """While it is silent, no first contact is granted or refused for good, and no add to a known ledger is lost."""
    rules = tmp_path / "rules"
    rules.write_text("anonymous write,fence,read metadata:team=mine\n")
    with ZooKeeperProcess(tmp_path / "zookeeper", port=free_ports(1)[0]) as server:
        uri = new_cluster(server.connect_string, "silent")
        bookie = BookieChild(tmp_path / "bookie", uri, authorizationRulesFile=str(rules), zkTimeout="60000")
        with bookie.running(), Client(uri) as client, bookie.connect() as peer:
            known, mine, theirs = (new_ledger(client, team) for team in ("mine", "mine", "theirs"))
            absent = theirs + 1000
            assert peer.add(known, 0, [b"x"], key=KEY) == [Status.EOK]
            os.kill(server.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(server.pid), "ZooKeeper to stop")
            try:
                for ledger_id in (mine, theirs, absent):
                    with bookie.connect() as other:
                        assert other.add(ledger_id, 0, [b"x"], key=KEY) == [Status.EIO]
                    assert peer.add(known, ledger_id, [b"x"], key=KEY) == [Status.EOK]
            finally:
                os.kill(server.pid, signal.SIGCONT)
            wait_until(lambda: "the metadata store answers again" in bookie.log_text(), "ZooKeeper to answer")
            for ledger_id, status in ((mine, Status.EOK), (theirs, Status.EUA), (absent, Status.EUA)):
                with bookie.connect() as other:
                    assert other.add(ledger_id, 1, [b"x"], key=KEY) == [status]
                    assert other.read(ledger_id, 0).status == (Status.ENOENTRY if status == Status.EOK else status)
                assert peer.read(known, ledger_id).status == Status.EOK


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped. They go on for a moment after the signal."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def new_ledger(client: Client, team: str) -> int:
    """Create a ledger of a team, and leave it open without an entry."""
    return client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata={"team": team}).ledger_id


def write_one(client: Client) -> int:
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append(b"one")
    return writer.ledger_id


def user() -> str:
    return getpass.getuser()


def status_of(bookie: BookieChild, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie.facts['http_port']}{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def control(bookie: BookieChild, command: str) -> tuple[int, str]:
    """Return exit code and last line of a command to the running bookie."""
    done = subprocess.run(
        [*bookie_command(bookie.settings, json=True), command], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
