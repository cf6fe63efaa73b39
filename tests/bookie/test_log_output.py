"""How a bookie logs: events of its life, text and JSON, a level and live keys that change while it runs."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bkspark.cli.child_process import ChildProcess
from bkspark.log_limit import DETAILS
from bkspark.log_lines import TEXT, TextFormatter
from bookie_service.admin.log_output import JsonFormatter
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.http_process import HTTP, answer, call
from tests.polling import wait_until

KEYS = {
    "metadataServiceUri": "zk://127.0.0.1:1/ledgers",
    "zkTimeout": "1000",
    "advertisedAddress": "127.0.0.1",
    "bookiePort": "0",
    "allowEphemeralPorts": "true",
    "journalDirectories": "journal",
    "ledgerDirectories": "ledgers",
}
WITHOUT_ZOOKEEPER = [word for key, value in KEYS.items() for word in ("--set", f"{key}={value}")]
"""Options of a bookie whose ZooKeeper does not run."""


def events(child: BookieChild) -> list[dict[str, Any]]:
    lines = child.log_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_json_line_has_the_form_of_opentelemetry() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "x %d", (5,), sys.exc_info())
    record.attributes = {"ledger_id": 7}
    record.created = 1763900000.5
    line = json.loads(JsonFormatter().format(record))
    assert line["Timestamp"] == "2025-11-23T12:13:20.500Z"
    assert (line["SeverityText"], line["Body"]) == ("WARN", "x 5")
    attributes = line["Attributes"]
    assert attributes["ledger_id"] == 7
    assert attributes["code.namespace"] == "a.b"
    assert attributes["exception.type"] == "ValueError"
    assert "Traceback" in attributes["exception.stacktrace"]
    assert "\n" not in JsonFormatter().format(record)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_line_of_a_peers_words_does_not_look_like_one_of_the_audit_log(end: str) -> None:
    """A path in a request that was refused, and a reason for read-only, could forge lines with any name and time."""
    forged = f"x{end}2026-11-24 03:15:48,816 INFO audit: root@host: delete ledger 1{end}\x1b[31m\0"
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "refused GET %s", (forged,), None)
    line = TextFormatter(TEXT).format(record)
    assert line.splitlines() == [line]
    assert line.isprintable()
    assert "refused GET x\\" in line


def test_lines_below_an_event_are_indented() -> None:
    try:
        raise ValueError("wrong\n2026-11-24 03:15:48,816 INFO audit: root@host: delete ledger 1")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    setattr(record, DETAILS, "one\ntwo")
    first, *below = TextFormatter(TEXT).format(record).splitlines()
    assert first.endswith("ERROR failed")
    assert below[:3] == ["  one", "  two", "  Traceback (most recent call last):"]
    assert all(line.startswith("  ") for line in below)
    assert json.loads(JsonFormatter().format(record))["Attributes"][DETAILS] == "one\ntwo"


@pytest.mark.cluster
def test_life_of_a_bookie_is_in_its_log(uri: str, tmp_path: Path) -> None:
    """Start with version and keys, replay, serving, stop with the reason (finding H4: the log was empty)."""
    child = BookieChild(tmp_path / "bookie", uri, passwd="s3cret")
    with child.running() as process:
        with child.connect() as peer:
            peer.add(1, 0, [b"entry"] * 10)
        process.kill()
    with child.running():
        pass
    text = child.log_text()
    assert re.search(r"INFO bookie 127.0.0.1:\d+ starts: bkspark \d+\.\d+\.\d+, pid \d+; keys that are set: ", text)
    assert "zkTimeout=4000" in text
    assert "passwd=***" in text
    assert "s3cret" not in text
    replayed = [int(number) for number in re.findall(r"(\d+) journal records were replayed", text)]
    assert replayed[0] == 0
    assert replayed[1] > 0
    assert f"INFO bookie {child.id} serves: clients at {child.id}" in text
    assert "INFO the bookie stops: a signal requested it" in text
    assert "INFO the bookie has stopped in order, after " in text


@pytest.mark.cluster
def test_json_log_has_the_same_events_with_attributes(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, logFormat="json")
    with child.running():
        pass
    found = {each["Attributes"].get("event.name"): each for each in events(child)}
    assert {"start", "replay", "serving", "stop"} <= found.keys()
    assert found["start"]["Attributes"]["keys"]["zkTimeout"] == "4000"
    assert found["replay"]["Attributes"]["records"] == 0
    assert found["serving"]["Attributes"]["clients"] == child.id
    assert found["stop"]["Attributes"]["reason"] == "a signal requested it"


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("bookie_service", ["--log-format", "json", "--set", "bookiePort=none"]),
        ("bookie_service", ["--set", "logFormat=json", "--set", "bookiePort=none"]),
        ("bookie_service", ["--set", "logFormat=json", "--set", "bookiePort=none", "--instances", "2"]),
        ("bookie_service.replication", ["autorecovery", "--set", "logFormat=json", "--set", "bookiePort=none"]),
        ("bookie_service", ["--set", "logFormat=json", *WITHOUT_ZOOKEEPER]),
        ("bookie_service.replication", ["autorecovery", "--set", "logFormat=json", *WITHOUT_ZOOKEEPER]),
    ],
)
def test_json_log_of_a_process_that_cannot_start_ends_with_an_object_too(
    program: str, options: list[str], tmp_path: Path
) -> None:
    """The line that says why it ended was text: a program that reads the log could not read this line."""
    command = [sys.executable, "-m", program, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["SeverityText"] == "FATAL"
    assert lines[-1]["Attributes"]["exit_code"] == done.returncode
    assert ("bookiePort" if "bookiePort=none" in options else "no ZooKeeper answers") in lines[-1]["Body"]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("bookie_service", []),
        ("bookie_service", ["--instances", "2"]),
        ("bookie_service", ["--instances", "2", "--instance", "1"]),
        ("bookie_service.replication", ["autorecovery"]),
    ],
)
@pytest.mark.parametrize("form", ["json", "${env:BOOKIE_LOG_FORM}", "${unset:-json}"])
def test_log_format_of_the_file_holds_also_for_what_is_wrong_in_the_file(
    program: str, options: list[str], form: str, tmp_path: Path
) -> None:
    """The last line was text: a wrong key elsewhere in the file was found before the format was used."""
    file = tmp_path / "bk_server.conf"
    file.write_text(f"bookiePort=none\nlogFormat={form}\n")
    done = subprocess.run(
        [sys.executable, "-m", program, *options, "--config", str(file)],
        env=os.environ | {"BOOKIE_LOG_FORM": "json"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["Attributes"]["exit_code"] == 2
    assert "bookiePort" in lines[-1]["Body"]


@pytest.mark.cluster
def test_sighup_reads_live_keys_again_and_ends_nothing(uri: str, tmp_path: Path) -> None:
    """Finding M2: SIGHUP killed a bookie without a flush."""
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, compactionRateByBytes="1000")
    child.directory.mkdir()
    file = tmp_path / "bk_server.conf"

    def write(**changes: str) -> None:
        file.write_text("".join(f"{key}={value}\n" for key, value in {**child.settings, **changes}.items()))

    write()
    with child.running(file) as process:
        port = child.facts["http_port"]
        config = "/api/v1/config/server_config"
        call(port, config, "PUT", {"minorCompactionThreshold": "0.3"})
        write(compactionRateByBytes="7000", logLevel="debug", maxConnections="77")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: the configuration was read again" in child.log_text(), "the signal's effect")
        keys = answer(port, config)
        assert (keys["compactionRateByBytes"], keys["logLevel"]) == ("7000", "debug")
        assert "minorCompactionThreshold" not in keys, "the file has no such key: its default counts again"
        log = child.log_text()
        assert "configuration keys that changed take effect at the next start: maxConnections" in log
        assert "audit: signal:SIGHUP: set compactionRateByBytes=7000 (before: 1000)" in log
        write(compactionRateByBytes="many")
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: the configuration is not read again" in child.log_text(), "the complaint")
        assert answer(port, config)["compactionRateByBytes"] == "7000"
        with child.connect() as peer:
            assert peer.add(1, 0, [b"entry"]) == [0]


@pytest.mark.cluster
def test_signals_of_programs_that_rotate_logs_end_nothing(uri: str, tmp_path: Path) -> None:
    """SIGUSR1 killed a bookie without a flush."""
    child = BookieChild(tmp_path / "bookie", uri)
    with child.running() as process:
        os.kill(process.pid, signal.SIGUSR2)
        os.kill(process.pid, signal.SIGUSR1)
        wait_until(lambda: "SIGUSR1: " in child.log_text(), "the state in the log")
        line = next(line for line in child.log_text().splitlines() if "SIGUSR1: " in line)
        state = json.loads(line.partition("SIGUSR1: ")[2])
        assert (state["id"], state["phase"]) == (child.id, "serving")
        with child.connect() as peer:
            assert peer.add(1, 0, [b"entry"]) == [0]


@pytest.mark.cluster
def test_no_level_silences_the_audit_log(uri: str, tmp_path: Path) -> None:
    """With logLevel=error, a bookie was made read-only without a trace."""
    child = BookieChild(tmp_path / "bookie", uri, logLevel="error", **HTTP)
    with child.running():
        port = child.facts["http_port"]
        call(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": True})
        wait_until(lambda: "audit: http:127.0.0.1: set read-only" in child.log_text(), "the line of the audit log")
        assert "serves: clients at" not in child.log_text()


@pytest.mark.cluster
def test_commands_go_through_the_control_socket(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri)
    with child.running():

        def command(*words: str, code: int = 0) -> Any:
            arguments = [
                "bookie",
                *words,
                "--set",
                f"ledgerDirectories={child.settings['ledgerDirectories']}",
                "--json",
            ]
            process = ChildProcess(
                "command", [sys.executable, "-m", "bkspark.cli", *arguments], tmp_path / "command.log"
            )
            try:
                lines = list(process.lines(None))
            finally:
                process.stop(STOP_S)
            assert process.exit_code == code, (tmp_path / "command.log").read_text()
            return json.loads(lines[0]) if lines else None

        state = command("state")
        assert (state["id"], state["phase"], state["registered"], state["read_only"]) == (
            child.id,
            "serving",
            True,
            False,
        )
        state = command("read-only", "before", "the", "move")
        assert (state["read_only"], state["reason"]) == (True, "before the move")
        assert command("read-only")["reason"] == "before the move"
        assert command("read-only", "the", "move")["reason"] == "the move"
        with child.connect() as peer:
            assert peer.add(1, 0, [b"entry"]) != [0]
        assert command("writable")["read_only"] is False
        assert command("suspend", "major", "collection")["is_suspended"] is True
        command("--collect", code=1)
        assert "garbage collection is suspended" in (tmp_path / "command.log").read_text()
        assert command("resume", "major", "collection")["is_suspended"] is False
        assert command("set", "compactionRate=77")["changed"] == {"compactionRate": ["", "77"]}
        # A value beyond the bounds is lowered to them, as at the start: the answer and the log say so.
        (note,) = command("set", f"compactionRateByBytes={10**18}")["notes"]
        assert note.startswith(f"compactionRateByBytes={10**18}: this bookie takes -1 to ")
        assert f"WARNING {note}" in child.log_text()
        command("set", "bookiePort=1", code=1)
        command("set", "nothing", code=2)
        assert command("limbo")["ledgers"] == command("limbo", "17")["ledgers"] == []
        for wrong in (["x"], ["-1"], [str(1 << 63)], ["1", "2"]):
            command("limbo", *wrong, code=2)
            assert "limbo takes the id of the ledger to list after" in (tmp_path / "command.log").read_text()
        audits = [line for line in child.log_text().splitlines() if " audit: control:" in line]
        assert len(audits) == 9, audits
