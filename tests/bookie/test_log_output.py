"""How a bookie logs: events of its life, text and JSON, a level and live keys that change while it runs."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bkspark.cli.child_process import ChildProcess
from bookie_service.admin.log_output import JsonFormatter, TextFormatter
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.test_http_process import HTTP, answer, call
from tests.polling import wait_until


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


@pytest.mark.cluster
def test_a_text_of_a_peer_cannot_look_like_another_line() -> None:
    """Paths of HTTP are in lines about refusals, decoded: a line break there would forge a line of the audit log."""
    hostile = "/x\n2026-11-24 audit: deleted ledger 7\r\x1b[2K\u2028\x85 ü"
    record = logging.LogRecord("bookie", logging.WARNING, "server.py", 7, "refused GET %s", (hostile,), None)
    line = TextFormatter("%(levelname)s %(message)s").format(record)
    assert line == ("WARNING refused GET /x\\n2026-11-24 audit: deleted ledger 7\\r\\x1b[2K\\u2028\\x85 ü")
    assert len(line.splitlines()) == 1


def test_a_traceback_has_its_lines() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("bookie", logging.ERROR, "server.py", 7, "failed", (), sys.exc_info())
    assert TextFormatter("%(message)s").format(record).splitlines()[-1] == "ValueError: why"


def test_a_stack_of_the_event_loop_has_its_lines_in_text_and_is_an_attribute_in_json() -> None:
    record = logging.LogRecord("bookie", logging.WARNING, "loop.py", 7, "busy", (), None)
    record.__dict__["stack"] = '  File "a.py", line 1\n    work()\n'
    assert TextFormatter("%(message)s").format(record) == 'busy\n  File "a.py", line 1\n    work()'
    assert json.loads(JsonFormatter().format(record))["Attributes"]["code.stacktrace"] == record.__dict__["stack"]


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
    assert "INFO the bookie stops: a signal asked for it" in text
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
    assert found["stop"]["Attributes"]["reason"] == "a signal asked for it"


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
        with child.connect() as peer:
            assert peer.add(1, 0, [b"entry"]) != [0]
        assert command("writable")["read_only"] is False
        assert command("suspend", "major", "collection")["is_suspended"] is True
        command("--collect", code=1)
        assert "garbage collection is suspended" in (tmp_path / "command.log").read_text()
        assert command("resume", "major", "collection")["is_suspended"] is False
        assert command("set", "compactionRate=77")["changed"] == {"compactionRate": ["", "77"]}
        command("set", "bookiePort=1", code=1)
        command("set", "nothing", code=2)
        assert command("limbo")["ledgers"] == []
        audits = [line for line in child.log_text().splitlines() if " audit: control:" in line]
        assert len(audits) == 7, audits
