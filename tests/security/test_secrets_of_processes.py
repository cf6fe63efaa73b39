"""Passwords of SASL, a password of a key and tokens of HTTP: a bookie, commands and requests, and then a search (S13).

What Spark leaves is searched in tests/spark/test_secret_scan.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from bkspark.blocking import Client
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from bkspark.net.pool import NetOptions
from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS, read_client_sasl
from bkspark.security.sasl import SaslClient, SaslServer, SaslServerOptions
from bkspark.tls.client_keys import read_client_file
from bkspark.tls.options import FACTORY_CLASS
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.bookie.child import BookieChild, new_cluster
from tests.secret_scan import SecretScanner, process_arguments
from tests.security.certificates import Authority
from tests.security.sasl_serving import USER, jaas_file, jaas_text

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parent.parent.parent


class Room:
    """Files with secrets, and what programs that use them leave beside."""

    def __init__(self, directory: Path) -> None:
        self.private, self.output = directory / "private", directory / "output"
        for path in (self.private, self.output):
            path.mkdir(mode=0o700)
        self.secrets = {
            name: f"{name} {uuid.uuid4().hex}".replace(" ", "-")
            for name in ("password", "wrong-password", "other-password", "key-password", "token", "wrong-token")
        }
        self.arguments: set[bytes] = set()
        authority = Authority(self.private)
        key, chain = authority.issue("bookie").pem(self.secrets["key-password"].encode())
        (self.private / "key-password").write_text(self.secrets["key-password"])
        users = {USER: self.secrets["password"], "reader": self.secrets["other-password"]}
        jaas_file(self.private / "right.jaas", jaas_text(users, password=self.secrets["password"]))
        jaas_file(self.private / "wrong.jaas", jaas_text(users, password=self.secrets["wrong-password"]))
        (self.private / "token").write_text(self.secrets["token"])
        (self.private / "access").write_text(f"token read amy {self.secrets['token']}\n")
        (self.private / "access").chmod(0o600)
        tls = {"tlsProviderFactoryClass": FACTORY_CLASS, "tlsTrustStore": authority.pem, "tlsTrustStoreType": "PEM"}
        self.bookie = {
            **tls,
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            "tlsKeyStorePasswordPath": str(self.private / "key-password"),
            KEY: SASL_CLASS,
            "authenticationRequired": "true",
            "saslJaasConfig": str(self.private / "right.jaas"),
            "httpServerEnabled": "true",
            "httpServerPort": "0",
            "httpServerAccessFile": str(self.private / "access"),
        }
        for name in ("right", "wrong"):
            keys = {**tls, PROVIDER: PROVIDER_CLASS, "saslJaasConfig": str(self.private / f"{name}.jaas")}
            (self.private / f"{name}.conf").write_text("".join(f"{key}={value}\n" for key, value in keys.items()))

    def command(self, uri: str, config: str, *arguments: str) -> int:
        """Run a command with the keys of a file; keep its output and its arguments."""
        command = [sys.executable, "-m", "bkspark.cli", *arguments, "--client-config", str(self.private / config)]
        number = len(list(self.output.iterdir()))
        environment = {**os.environ, "BKSPARK_URI": uri, "PYTHONPATH": str(ROOT)}
        with (self.output / f"{number}.txt").open("wb") as kept:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=kept,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.arguments |= set(process_arguments(session=process.pid).values())
            process.communicate(b"one\ntwo\n", timeout=120)
        return process.returncode

    def keep(self, text: str) -> None:
        (self.output / f"{len(list(self.output.iterdir()))}.txt").write_text(text)


def _ask(port: int, path: str, token: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _shown(room: Room, uri: str) -> str:
    """Return what a notebook shows of objects that know the secrets."""
    config = str(room.private / "right.conf")
    sasl, tls = read_client_sasl(config), read_client_file(config)
    assert sasl is not None
    net = NetOptions(sasl=sasl, tls=tls)
    server_options = SaslServerOptions(sasl.jaas_config)
    login, server = SaslClient(sasl), SaslServer(server_options)
    with Client(uri, net=net) as client:
        ledgers = client.ledgers()
        shown = [
            client,
            net,
            sasl,
            tls,
            login,
            login.begin("localhost"),
            server,
            server.begin(),
            server_options,
            ledgers,
        ]
        pages = [each._repr_html_() for each in shown if hasattr(each, "_repr_html_")]
        kept = [*map(repr, shown), repr(vars(login)), repr(vars(server)), repr(login._credentials.current())]
        return "\n".join([*pages, *kept, repr(server._credentials.current())])


@pytest.mark.usefixtures("cold_starts")
def test_no_password_or_token_is_in_logs_outputs_files_or_arguments(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    room = Room(tmp_path)
    uri = new_cluster(zookeeper.connect_string, uuid.uuid4().hex)
    bookie = BookieChild(tmp_path / "bookie", uri, **room.bookie)
    with bookie.running() as process:
        room.arguments.add(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        port = int(bookie.facts["http_port"])
        one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
        assert room.command(uri, "right.conf", "log", "append", "searched-log", *one) == 0
        assert room.command(uri, "right.conf", "log", "read", "searched-log") == 0
        assert room.command(uri, "wrong.conf", "log", "read", "searched-log") == 1
        room.keep(_shown(room, uri))
        for path in ("/api/v1/bookie/info", "/api/v1/config/server_config", "/metrics"):
            room.keep("\n".join(map(str, _ask(port, path, room.secrets["token"]))))
            status, text = _ask(port, path, room.secrets["wrong-token"])
            room.keep(text)
            assert status in (401, 403), path
    scanner = SecretScanner({name: text.encode() for name, text in room.secrets.items()})
    found = list(scanner.below([tmp_path], without=[room.private]))
    for line in room.arguments:
        found += scanner.in_bytes(line, "arguments of a process")
    assert found == []
    # What is not a secret is found in the same places.
    assert list(SecretScanner({"name": b"searched-log"}).below([tmp_path / "output"]))
    assert "its authentication failed" in (tmp_path / "bookie" / "bookie.log").read_text()
