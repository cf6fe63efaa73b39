"""A complete run of Spark and of commands, and then a search for their secrets in all that others may see (S13)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

import pytest

from bkspark.blocking import Client
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.security.client_keys import PROVIDER, PROVIDER_CLASS
from bkspark.tls.options import FACTORY_CLASS
from bkspark.wire.digest import master_key
from bkspark.wire.encrypted_entries import EncryptionRecord
from bookie_service.formats.entry_log import parse_file_name
from bookie_service.settings.authentication import KEY, SASL_CLASS
from tests.cluster import Cluster
from tests.key_files import new_key_file
from tests.secret_scan import SecretScanner, process_arguments
from tests.security.certificates import Authority
from tests.security.sasl_serving import USER, jaas_file, jaas_text
from tests.spark.secret_job import DONE

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent
ENDED_S = 240


def password(name: str) -> str:
    """Return a password that looks different in every encoding."""
    return f'{name} & "{os.urandom(6).hex()}" <%+/\\> \u00fc'


class ClosedCluster:
    """A cluster with TLS and SASL, and files of secrets with which a client may use it, or may not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = {
            name: os.urandom(9).hex().encode() for name in ("right login", "wrong login", "key", "wrong key")
        }
        authority = Authority(folder)
        client = authority.issue("client")
        key, chain = client.pem(self.secrets["key"])
        self.secrets["private key"] = client.key.private_numbers().private_value.to_bytes(32, "big")
        for name in ("key", "wrong key"):
            (folder / name).write_bytes(self.secrets[name] + b"\n")
        users = {USER: self.secrets["right login"].decode()}
        for name in ("right login", "wrong login"):
            jaas_file(folder / name, jaas_text(users, password=self.secrets[name].decode()))
        self._tls = {"tlsProviderFactoryClass": FACTORY_CLASS, "tlsTrustStore": authority.pem}
        self._keys = {
            **self._tls,
            "tlsClientAuthentication": "true",
            "tlsKeyStore": key,
            "tlsCertificatePath": chain,
            PROVIDER: PROVIDER_CLASS,
        }
        bookie_key, bookie_chain = authority.issue("bookie").pem()
        self._settings = {
            **self._tls,
            "tlsRequired": "true",
            "tlsClientAuthentication": "true",
            "tlsKeyStore": bookie_key,
            "tlsCertificatePath": bookie_chain,
            KEY: SASL_CLASS,
            "authenticationRequired": "true",
            "saslJaasConfig": str(folder / "right login"),
        }
        self.uri = ""
        """Set by `running`."""
        self.directory = folder
        """The files of the bookies. Set by `running`."""

    @contextlib.contextmanager
    def running(self, directory: Path) -> Iterator[Self]:
        """Start and end the bookies, whose files are in a directory."""
        with Cluster(directory, settings=self._settings) as cluster:
            self.uri, self.directory = cluster.uri, cluster.dir
            yield self

    def options(self, login: str = "right login", key: str = "key") -> dict[str, str]:
        """Return the options of a client with some of the secrets."""
        named = {"saslJaasConfig": str(self.folder / login), "tlsKeyStorePasswordPath": str(self.folder / key)}
        return {"uri": self.uri, **self._keys, **named}

    def client_file(self) -> Path:
        """Write the options as a client's file."""
        path = self.folder / "client.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.options().items() if key != "uri"))
        return path


class Run:
    """A folder with files of secrets, and what programs that use them leave beside."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.closed: ClosedCluster
        """Set once its bookies run."""
        self.secrets = folder / "private"
        self.output = folder / "output"
        for path in (self.secrets, self.output, folder / "home", folder / "tmp"):
            path.mkdir(parents=True, mode=0o700)
        self.passwords = {name: password(name) for name in ("file", "environment", "option", "hadoop")}
        # In the text of a statement, so without characters that SQL would escape.
        self.passwords["sql"] = f"statement {os.urandom(8).hex()}"
        (self.secrets / "password").write_text(self.passwords["file"] + "\n")
        # Ids that no other test of the shared cluster has.
        key_ids = [f"scan-{os.urandom(4).hex()}-{number}" for number in (10, 11)]
        self.keys = new_key_file(self.secrets / "keys", *key_ids)
        new_key_file(self.secrets / "wrong-keys", *key_ids)
        (self.secrets / "hadoop-password").write_text(self.passwords["hadoop"])
        (self.secrets / "bad-keys").write_text(self.passwords["hadoop"] + "\n")
        self.arguments: set[bytes] = set()

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.folder / "tmp"),
            "BKSPARK_URI": self.cluster.uri,
            "BKSPARK_PASSWORD": self.passwords["environment"],
            "OPTION_PASSWORD": self.passwords["option"],
            "SQL_PASSWORD": self.passwords["sql"],
            "CLOSED": json.dumps(self.closed.options()),
            "WRONG_LOGIN": json.dumps(self.closed.options(login="wrong login")),
            "WRONG_KEY": json.dumps(self.closed.options(key="wrong key")),
        }

    def program(self, name: str, *command: object, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own; its output is kept."""
        error: IO[bytes]
        with (self.output / f"{name}.err").open("wb") as error:
            return subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                env={**self.environment(), **environment},
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error,
                start_new_session=True,
            )

    def note_arguments(self, process: subprocess.Popen[bytes]) -> None:
        self.arguments |= set(process_arguments(session=process.pid).values())

    def ledger_keys(self) -> dict[str, bytes]:
        """Return the keys of all encrypted ledgers: they are nowhere but in the memory of clients."""
        found, options = {}, EncryptionOptions(self.keys)
        with Client(self.cluster.uri) as client:
            for ledger_id in client.ledgers():
                record = EncryptionRecord.of(ledger_id, client.metadata(ledger_id).custom_metadata)
                if record is not None and options.has(record.key_id):
                    found[f"key of ledger {ledger_id}"] = options.ledger_key(record)
        return found

    def all_secrets(self) -> dict[str, bytes]:
        found = {f"password of {name}": text.encode() for name, text in self.passwords.items()}
        for name, text in self.passwords.items():
            found[f"master key of {name}"] = master_key(text.encode())
            found[f"MAC key of {name}"] = hashlib.sha1(b"mac" + text.encode()).digest()
        for line in Path(self.keys).read_text().splitlines():
            found[f"key {line.split()[0]}"] = base64.b64decode(line.split()[1])
        found |= {f"{name} of the closed cluster": secret for name, secret in self.closed.secrets.items()}
        return found | self.ledger_keys()

    def findings(self) -> list[str]:
        """Return what a user of this host finds of the secrets, outside of the files that hold them by purpose."""
        scanner = SecretScanner(self.all_secrets())
        distributed = [path for path in self.folder.rglob("bookkeeper.password-*") if path.is_file()]
        left_out = [self.secrets, self.folder / "home", *distributed]
        found = list(scanner.below([self.folder], without=left_out))
        for line in self.arguments:
            found += scanner.in_bytes(line, "arguments of a process")
        # An entry log is named like a program's log, and only its bookie's user may read it.
        for directory in (self.cluster.dir, self.closed.directory):
            for log in directory.rglob("*.log"):
                if not log.is_relative_to(directory / "zookeeper") and parse_file_name(log.name) is None:
                    found += scanner.in_file(log)
        return sorted(map(str, found))


def wait_for(run: Run, process: subprocess.Popen[bytes], name: str, last_line: bytes | None) -> int | None:
    """Keep what the program prints until a line is `last_line`, or it ends; note arguments of its processes
    each time that it prints."""
    assert isinstance(process.stdout, io.BufferedReader)
    with (run.output / f"{name}.out").open("wb") as out:
        line = b""
        while printed := process.stdout.read1():
            run.note_arguments(process)
            out.write(printed)
            *lines, line = (line + printed).split(b"\n")
            if last_line in lines:
                return None
    return process.wait(ENDED_S)


@pytest.fixture
def complete(tmp_path: Path, cluster: Cluster) -> Iterator[Run]:
    run = Run(tmp_path / "run", cluster)
    (run.secrets / "closed").mkdir()
    with ClosedCluster(run.secrets / "closed").running(tmp_path / "bookies") as run.closed:
        yield run


def commands(run: Run) -> None:
    """Commands that succeed and commands that fail, with a password and keys from files."""
    lines = run.folder / "lines"
    lines.write_text("one\ntwo\n")
    given = ["--password-file", run.secrets / "password", "--encryption-key-file", run.keys]
    wrong = ["--password-file", run.secrets / "password", "--encryption-key-file", run.secrets / "wrong-keys"]
    bad = ["--password-file", run.secrets / "password", "--encryption-key-file", run.secrets / "bad-keys"]
    for name, code, *command in (
        ("append", 0, "log", "append", "searched-lines", lines, "--json", "--digest", "mac", *given),
        ("read", 0, "log", "read", "searched-lines", *given),
        ("shown", 0, "log", "read", "searched-lines", "--json", *given[:2]),
        ("show", 0, "log", "show", "searched-lines", "--json", *given),
        ("logs", 0, "log", "list", "--json", *given),
        ("ledgers", 0, "ledger", "list", "--json"),
        ("environment", 0, "log", "read", "searched-environment", "--format", "length-prefixed"),
        ("refused", 1, "log", "read", "searched-lines", "--password", "another"),
        ("wrong", 1, "log", "read", "searched-lines", *wrong),
        ("bad", 2, "log", "read", "searched-lines", *bad),
        ("unknown", 2, "log", "reed", "searched-lines", *given),
        ("closed", 0, "log", "list", "--uri", run.closed.uri, "--client-config", run.closed.client_file()),
        (
            "closed-read",
            0,
            "log",
            "read",
            "searched-closed",
            "--uri",
            run.closed.uri,
            "--client-config",
            run.closed.client_file(),
        ),
    ):
        process = run.program(f"command-{name}", "bkspark.cli", *command)
        run.note_arguments(process)
        assert wait_for(run, process, f"command-{name}", None) == code, (run.output / f"command-{name}.err").read_text()


@pytest.mark.long(reason="55 s: a complete run of Spark and of the commands; .ci/run has it")
def test_no_secret_is_in_plans_pages_logs_checkpoints_outputs_or_arguments(complete: Run) -> None:
    run = complete
    process = run.program("spark", "tests.spark.secret_job", run.cluster.uri, run.folder)
    try:
        ended = wait_for(run, process, "spark", DONE.encode())
        assert ended is None, (run.output / "spark.err").read_text()[-3000:] + (run.output / "spark.out").read_text()
        run.note_arguments(process)
        commands(run)
        while_it_runs = run.findings()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(ENDED_S)
    assert len(run.arguments) >= 3
    # The application's files, its event log, checkpoints and pages were there to be searched.
    for pattern in ("events/**/*", "checkpoints/*/offsets/0", "ui/SQL.html", "ui/envi.json", "output/spark.err"):
        assert any(path.is_file() and path.stat().st_size for path in run.folder.glob(pattern)), pattern
    # What is not a secret is found there: the name of a log. Values that look like secrets would be redacted by Spark.
    control = SecretScanner({"name": b"searched-file"})
    for folder in ("events", "output", "ui"):
        assert list(control.below([run.folder / folder])), folder
    assert while_it_runs == []
    assert run.findings() == []
