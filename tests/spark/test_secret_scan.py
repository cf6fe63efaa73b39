"""A complete run of Spark and of commands, and then a search for their secrets in all that others may see (S13)."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from bkspark.blocking import Client
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.wire.digest import master_key
from bkspark.wire.encrypted_entries import EncryptionRecord
from bookie_service.formats.entry_log import parse_file_name
from tests.cluster import Cluster
from tests.key_files import new_key_file
from tests.secret_scan import SecretScanner, process_arguments
from tests.spark.secret_job import DONE

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent
ENDED_S = 240


def password(name: str) -> str:
    """Return a password that looks different in every encoding."""
    return f'{name} & "{os.urandom(6).hex()}" <%+/\\> \u00fc'


class Run:
    """A folder with files of secrets, and what programs that use them leave beside."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
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
        for log in self.cluster.dir.rglob("*.log"):
            if not log.is_relative_to(self.cluster.dir / "zookeeper") and parse_file_name(log.name) is None:
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
def complete(tmp_path: Path, cluster: Cluster) -> Run:
    return Run(tmp_path / "run", cluster)


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
    ):
        process = run.program(f"command-{name}", "bkspark.cli", *command)
        run.note_arguments(process)
        assert wait_for(run, process, f"command-{name}", None) == code, (run.output / f"command-{name}.err").read_text()


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
