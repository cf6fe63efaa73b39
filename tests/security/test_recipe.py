"""The recipe of docs/security.md, run as it is written, on a free port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.cli.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("recipe")]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SECONDS = 240


def blocks(heading: str) -> list[str]:
    """Return the shell programs below a heading, without the indentation of a list."""
    _, _, after = PAGE.read_text().partition(f"# {heading}\n")
    section = re.split(r"^#+ ", after, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^( *)```bash\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def bookies_script(port: int, *, with_passwords: bool) -> str:
    """Return a recipe for bookies as one script."""
    certificates, bookie, start, client, use = blocks("A closed cluster in ten minutes")
    before = [certificates, bookie, client]
    if with_passwords:
        jaas, more_keys, use = blocks("The same with passwords")
        before += [jaas, more_keys]
    return script(before, start, [use], port)


def zookeeper_script(port: int) -> str:
    """Return the recipe for ZooKeeper as one script."""
    login, start, client, close, use = blocks("A closed ZooKeeper in ten minutes")
    return script([login], start, [client, close, use], port)


def script(before: list[str], start: str, after: list[str], port: int) -> str:
    """Return a script that waits until its cluster serves, and ends it."""
    start = start.replace("local ", "local --json ").replace(" &", " > started.json & cluster=$!")
    waiting = "until [ -s started.json ]; do kill -0 $cluster; read -rt 0.1 <> <(:) || :; done"
    lines = [
        "set -euo pipefail",
        *before,
        start,
        "trap 'kill -TERM $(jobs -p) 2>/dev/null; wait' EXIT",
        waiting,
        # The last command must fail, and ends the script.
        *after,
    ]
    return "\n".join(lines).replace("2181", str(port))


def run(directory: Path, text: str) -> tuple[int, list[str], str]:
    """Run a script; return its exit code, what it printed, and its errors."""
    program = directory / "bin" / "bkspark"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bkspark.cli "$@"\n')
    program.chmod(0o755)
    environment = {key: text for key, text in os.environ.items() if not key.startswith("BKSPARK_")}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    done = subprocess.Popen(
        ["bash", "-c", text],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = done.communicate(timeout=SECONDS)
    except BaseException:
        os.killpg(done.pid, signal.SIGKILL)
        done.wait()
        raise
    assert len(json.loads((directory / "started.json").read_text())["bookies"]) == 3
    return done.returncode, printed.splitlines(), errors


def test_recipe_makes_a_closed_cluster(tmp_path: Path) -> None:
    code, printed, errors = run(tmp_path, bookies_script(free_ports(1)[0], with_passwords=False))
    assert printed == ["log clicks has 1 more entries, 5 B", "hello", "1 ledgers, nothing is missing"], errors
    assert code == 1, errors
    assert "it may serve only TLS" in errors, "the last command says why it failed"


def test_recipe_with_passwords_lets_no_client_in_without_one(tmp_path: Path) -> None:
    code, printed, errors = run(tmp_path, bookies_script(free_ports(1)[0], with_passwords=True))
    assert printed == ["log clicks has 1 more entries, 5 B", "hello", "1 ledgers, nothing is missing"], errors
    assert code == 1, errors
    assert "authenticated clients" in errors, "the last command says why it failed"
    assert (tmp_path / "jaas.conf").stat().st_mode & 0o777 == 0o600


def test_recipe_closes_zookeeper(tmp_path: Path) -> None:
    code, printed, errors = run(tmp_path, zookeeper_script(free_ports(1)[0]))
    assert "nodes; others than sasl:bookkeeper may change 0; 0 cannot be looked at" in printed[0], errors
    assert printed[1:] == ["log clicks has 1 more entries, 5 B", "hello"], errors
    assert code == 1, errors
    assert "names no JAAS file (saslJaasConfig)" in errors, "the last command says why it failed"
    planned, closed = ((tmp_path / name).read_text() for name in ("planned.txt", "closed.txt"))
    assert " would be changed to sasl:bookkeeper:cdrwa; 0 are refused" in planned
    assert " were changed to sasl:bookkeeper:cdrwa; 0 are refused" in closed
    assert (tmp_path / "client.jaas").stat().st_mode & 0o777 == 0o600
