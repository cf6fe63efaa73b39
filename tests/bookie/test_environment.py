"""`--environment`: variables BK_KEY set configuration keys, as in Apache's image."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from bkspark.cli.bookie import bookie_command
from bookie_service.settings.arguments import variables
from tests.bookie.child import START_S, BookieChild


def test_a_variable_is_a_key_after_its_prefix() -> None:
    assert variables({"BK_bookiePort": "3181", "PATH": "/bin", "bookieId": "x"}) == [("bookiePort", "3181")]


def test_keys_with_underscores_keep_them() -> None:
    assert variables({"BK_dbStorage_writeCacheMaxSizeMb": "64"}) == [("dbStorage_writeCacheMaxSizeMb", "64")]


@pytest.mark.parametrize(
    "name",
    [
        "BK_DATA_DIR",  # the image's entry point takes it
        "BK_HOME",
        "BK_PORT_3181_TCP_ADDR",  # Kubernetes sets it for a service whose name is bk
        "BK_",
    ],
)
def test_other_variables_set_no_key(name: str) -> None:
    assert variables({name: "x"}) == []


def test_an_empty_variable_sets_nothing() -> None:
    """Compose files write BK_advertisedAddress=${ADDRESS}, which may be empty."""
    assert variables({"BK_advertisedAddress": "", "BK_bookieId": " "}) == []


@pytest.mark.cluster
def test_variables_win_over_the_file_and_set_over_variables(tmp_path: Path, uri: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri)
    file = tmp_path / "bookie.conf"
    given = bookie.settings | {"bookiePort": "1", "logLevel": "error", "minorCompactionThreshold": "0.1"}
    file.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    environment = os.environ | {
        "BK_bookiePort": bookie.settings["bookiePort"],
        "BK_logLevel": "warning",
        "BK_minorCompactionThreshold": "0.3",
    }
    command = [*bookie_command({"logLevel": "info"}, json=True), "--config", str(file), "--environment"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["id"] == bookie.id
            asking = [*command, "state"]
            asked = subprocess.run(asking, capture_output=True, text=True, timeout=START_S, env=environment)
            assert json.loads(asked.stdout)["phase"] == "serving"
            reloaded = subprocess.run(
                [*command, "reload"], capture_output=True, text=True, timeout=START_S, env=environment
            )
            assert json.loads(reloaded.stdout)["changed"] == {}
        finally:
            process.terminate()


@pytest.mark.parametrize(("name", "value"), [("BK_bookiePort", "70000"), ("BK_bookieport", "3181")])
def test_a_wrong_variable_is_refused_as_in_a_file(name: str, value: str) -> None:
    command = [*bookie_command({}, json=True), "--environment"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, env=os.environ | {name: value})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert name.removeprefix("BK_") in line
