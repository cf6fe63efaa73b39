"""HTTP of real bookie processes with credentials: roles on the real paths, audit, Prometheus, stalls, refusals."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from bkspark.blocking import Client
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.bookie.child import BookieChild, new_cluster
from tests.polling import wait_until
from tests.security.certificates import Authority

pytestmark = pytest.mark.cluster

PROMETHEUS = shutil.which("prometheus")
TOKENS = {role: f"{role}-{uuid.uuid4().hex}" for role in ("metrics", "read", "operate", "destroy")}


@pytest.fixture
def uri(zookeeper: ZooKeeperProcess) -> str:
    return new_cluster(zookeeper.connect_string, uuid.uuid4().hex)


def guarded(tmp_path: Path, authority: Authority) -> dict[str, str]:
    """Return the keys of a bookie whose HTTP other hosts may reach."""
    access = tmp_path / "access"
    access.write_text(
        "".join(f"token {role} {role}er {token}\n" for role, token in TOKENS.items()) + "certificate operate CN=ops\n"
    )
    access.chmod(0o600)
    key, chain = authority.issue("bookie").pem()
    return {
        "httpServerEnabled": "true",
        "httpServerPort": "0",
        "httpServerHost": "0.0.0.0",
        "httpServerAccessFile": str(access),
        "httpServerTlsEnable": "true",
        "httpServerKeyStorePath": key,
        "httpServerCertificatePath": chain,
        "httpServerTrustStorePath": authority.pem,
        "httpServerTlsHandshakeTimeoutMs": "2000",
    }


class Https:
    """A client of one bookie."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.port = port
        self._context = context

    def __call__(self, role: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        sent |= {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}
        data = None if body is None else json.dumps(body)
        sent |= {} if data is None else {"Content-Type": "application/json", **sent}
        with contextlib.closing(HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self._context)) as peer:
            peer.request(method, path, data, sent)
            reply = peer.getresponse()
            text = reply.read().decode()
        with contextlib.suppress(ValueError):
            return reply.status, json.loads(text)
        return reply.status, text


@pytest.mark.usefixtures("cold_starts")
def test_roles_bound_what_a_token_may_do_from_anywhere(uri: str, tmp_path: Path, authority: Authority) -> None:
    """A change beyond loopback is possible with a role, and leaves a line with the token's name."""
    child = BookieChild(tmp_path / "bookie", uri, **guarded(tmp_path, authority))
    with child.running() as process:
        ask = Https(child.facts["http_port"], ssl.create_default_context(cafile=authority.pem))
        with Client(uri) as client:
            with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                writer.append_many([b"kept"])
            ledger = f"/api/v2/ledgers/{writer.ledger_id}"
            v1_ledger = f"/api/v1/ledger/delete?ledger_id={writer.ledger_id}"
            for role in ("", "metrics", "read", "operate"):
                assert ask(role, "DELETE", ledger)[0] == (403 if role else 401)
                assert ask(role, "DELETE", v1_ledger)[0] == (403 if role else 401)
            decommission = {"bookie_src": "127.0.0.1:1", "delete_cookie": "true"}
            assert ask("operate", "PUT", "/api/v1/autorecovery/decommission", decommission)[0] == 403
            forget = "/api/v2/cluster/bookies/127.0.0.1:1/recover"
            assert ask("operate", "POST", forget, {"forget": True})[0] == 403
            assert ask("read", "GET", "/api/v1/bookie/sanity")[0] == 403, "it writes a ledger"
            assert ask("read", "GET", f"{ledger}/entries")[1]["entries"][0]["entry"] == 0
            assert ask("metrics", "GET", f"{ledger}/entries")[0] == 403
            for path in ("/heartbeat", "/api/v1/bookie/is_ready", "/api/v1/bookie/state"):
                assert ask("", "GET", path)[0] == 200, "probes have no token"
            assert ask("read", "PUT", "/api/v1/bookie/state/readonly", {"readOnly": True})[0] == 403
            assert ask("operate", "PUT", "/api/v2/bookie/read-only", {"read_only": True}, Origin="https://x")[0] == 403
            assert ask("operate", "POST", "/api/v2/bookie/collection", {}, Content_Type="text/plain")[0] == 415
            changed = ask("operate", "PUT", "/api/v2/bookie/read-only", {"read_only": True, "reason": "far away"})
            assert changed[1]["read_only"] is True
            assert ask("operate", "PUT", "/api/v2/bookie/read-only", {"read_only": False})[0] == 200
            assert ask("destroy", "DELETE", ledger) == (200, {"ledger": writer.ledger_id})
        document = ask("read", "GET", "/api/v2/openapi.json")[1]
        assert document["paths"]["/api/v2/ledgers/{ledger_id}"]["delete"]["x-role"] == "destroy"
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        lines = [each for each in child.log_text().splitlines() if "audit: " in each]
        assert any("http:127.0.0.1 token:operateer: set read-only (far away)" in each for each in lines)
        assert any(f"http:127.0.0.1 token:destroyer: delete ledger {writer.ledger_id}" in each for each in lines)
        registered = child.ask_registry(lambda registry: registry.registration(child.id))
        assert registered is not None
        assert registered.http_tls
        shown = b"".join(Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        keys = json.dumps(ask("read", "GET", "/api/v2/bookie/keys")[1])
        for token in TOKENS.values():
            assert token not in child.log_text()
            assert token not in keys
            assert token.encode() not in shown


def test_a_bookie_that_others_could_reach_without_credentials_does_not_start(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, httpServerEnabled="true", httpServerPort="0")
    code, line = child.refusal(httpServerHost="0.0.0.0")
    assert code == 2
    assert "httpServerHost=0.0.0.0" in line
    assert "httpServerAccessFile" in line
    code, line = child.refusal(httpServerHost="0.0.0.0", httpServerAccessFile="/nonexistent")
    assert (code, "httpServerAccessFile=/nonexistent: the file cannot be read" in line) == (2, True)
    code, line = child.refusal(httpServerTlsEnable="true", httpServerKeyStorePath="/nonexistent")
    assert (code, "httpServerKeyStorePath=/nonexistent: the file cannot be read" in line) == (2, True)


def test_stuck_handshakes_do_not_stall_adds(uri: str, tmp_path: Path, authority: Authority) -> None:
    """Peers that begin TLS and stop, and a flood of whole handshakes: adds go on, and HTTP answers."""
    child = BookieChild(tmp_path / "bookie", uri, **guarded(tmp_path, authority))
    with child.running(), contextlib.ExitStack() as held:
        port = child.facts["http_port"]
        ask = Https(port, ssl.create_default_context(cafile=authority.pem))
        for number in range(60):
            peer = held.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            if number % 2:
                peer.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        with child.connect() as adder:
            longest = max(_timed(lambda first=first: adder.add(7, first, [b"x" * 100])) for first in range(200))
        assert ask("", "GET", "/heartbeat") == (200, "OK\n")
        # Not a measurement: a stall would last until the deadline of a handshake, two seconds.
        assert longest < 1.0


def _timed(act: Any) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Any]:
    """Run Prometheus on a configuration; give a function that evaluates an expression."""
    with contextlib.ExitStack() as held:

        def start(configuration: dict[str, Any]) -> Any:
            (port,) = free_ports(1)
            path = tmp_path / "prometheus.yml"
            path.write_text(json.dumps(configuration))
            assert PROMETHEUS is not None
            command = [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
            log = held.enter_context((tmp_path / "prometheus.log").open("wb"))
            process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
            held.callback(process.wait, 30)
            held.callback(process.terminate)

            def value(expression: str) -> list[Any]:
                try:
                    with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': expression})}") as reply:
                        return list(json.load(reply)["data"]["result"])
                except OSError:
                    return []  # it starts

            return value

        yield start


@pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus on the PATH; Debian's package has it")
def test_prometheus_scrapes_with_a_token_of_the_role_metrics(
    uri: str, tmp_path: Path, authority: Authority, prometheus: Any
) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **guarded(tmp_path, authority))
    token = tmp_path / "prometheus.token"
    token.write_text(f"{TOKENS['metrics']}\n")
    with child.running():
        job = {
            "scheme": "https",
            "scrape_interval": "1s",
            "tls_config": {"ca_file": authority.pem},
            "static_configs": [{"targets": [f"127.0.0.1:{child.facts['http_port']}"]}],
        }
        with_token = {**job, "job_name": "bookie", "authorization": {"credentials_file": str(token)}}
        value = prometheus({"scrape_configs": [with_token, {**job, "job_name": "stranger"}]})
        wait_until(lambda: value('up{job="bookie"} == 1'), "a scrape", 60)
        wait_until(lambda: value('bookie_SERVER_STATUS{job="bookie"}'), "a sample", 60)
        wait_until(lambda: value('up{job="stranger"} == 0'), "the refusal of a scrape without a token", 60)
