"""The comparison with Kafka names every target of the specification, and says why it does not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks import spark_vs_kafka
from benchmarks.processor_time import ProcessorClock
from benchmarks.spark_cases import CASES, Comparison, over_network

BURN = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint(flush=True)\ninput()"


def test_without_kafka_it_says_why_and_measures_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    spark_vs_kafka.main([])
    assert "mvn" in json.loads(capsys.readouterr().out)["skipped"]


def test_maven_without_kafka_is_a_reason_too(monkeypatch, capsys, tmp_path):
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] Could not transfer artifact org.apache.kafka:kafka'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    spark_vs_kafka.main([])
    assert "Could not transfer artifact" in json.loads(capsys.readouterr().out)["skipped"]


@pytest.mark.cluster
def test_broker_that_does_not_start_is_a_reason_too(monkeypatch, capsys, tmp_path):
    maven = tmp_path / "mvn"
    maven.write_text('#!/bin/sh\nfor each; do case $each in -Dmdep*) echo /nowhere.jar >"${each#*=}";; esac; done\n')
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spark_vs_kafka.main(["--dir", str(tmp_path)])
    assert "Kafka could not format its folder" in json.loads(capsys.readouterr().out)["skipped"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rounds", "0"], "'0' is not a whole number"),
        (["--scale", "-1"], "'-1' is not a number above 0"),
        (["--scale", "nan"], "'nan' is not a number above 0"),
        (["--plot", "picture.doc"], "'picture.doc' does not end in .png or .svg"),
        (["--plot", "/nowhere/picture.png"], "'/nowhere' is not a folder"),
        (["--dir", "/nowhere"], "'/nowhere' is not a folder"),
    ],
)
def test_wrong_arguments_are_reported_before_anything_is_measured(arguments, reason, capsys):
    with pytest.raises(SystemExit):
        spark_vs_kafka.main(arguments)
    assert reason in capsys.readouterr().err


def targets(cases):
    figures = [figure for case in cases for figure in case.figures()]
    return {figure.name: figure.target() for figure in figures if figure.target()}


def test_reads_over_the_network_have_targets_of_their_own():
    found = targets(map(over_network, CASES.values()))
    assert {name: target for name, target in found.items() if name.startswith("read_1KiB")} == {
        "read_1KiB raw per Kafka": ">= 2.5",
        "read_1KiB raw per limit": ">= 0.45",
        "read_1KiB arrow per limit": ">= 0.45",
    }
    assert found["write_1KiB raw per Kafka"] == ">= 1.5"


def test_every_target_of_the_specification_has_a_figure():
    assert targets(CASES.values()) == {
        "read_1KiB raw per Kafka": ">= 1.4",
        "read_1KiB raw per limit": ">= 0.55",
        "read_1KiB arrow per limit": ">= 0.75",
        "read_1KiB raw processor": "<= 3.0",
        "read_1KiB raw client": "<= 0.7",
        "read_1KiB raw servers": "<= 0.5",
        "read_100B raw": ">= 1,000,000",
        "read_100B arrow per Kafka": ">= 2.0",
        "write_1KiB arrow per Kafka": ">= 2.0",
        "write_1KiB raw_3_bookies per Kafka": ">= 1.0",
        "write_1KiB raw per Kafka": ">= 1.5",
        "stream_read raw per limit": ">= 0.8",
        "stream_read raw per Kafka": ">= 1.0",
        "stream_write raw_3_bookies per Kafka": ">= 1.0",
        "stream_write raw per Kafka": ">= 1.5",
        "stream_write arrow per Kafka": ">= 1.5",
        "small_triggers raw per Kafka": "<= 1.1",
        "small_triggers raw above limit": "<= 30.0",
        "append_to_sink raw per Kafka": "<= 1.1",
    }


def test_a_comparison_takes_the_best_of_its_round():
    values = {"raw": 300.0, "kafka": 100.0, "kafka_tuned": 200.0}
    assert Comparison("", "raw", ("kafka", "kafka_tuned")).value(values, max) == 1.5
    assert Comparison("", "raw", ("kafka", "kafka_tuned")).value(values, min) == 3.0
    assert Comparison("", "raw", ("kafka_tuned",), is_difference=True).value(values, min) == 100.0


def test_the_clock_counts_children_that_run_and_those_that_ended():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        clock = ProcessorClock(parent.pid, [])
        assert parent.stdout is not None
        parent.stdout.readline()
        used = clock.elapsed()
        later = ProcessorClock(parent.pid, [parent.pid]).elapsed()
        parent.communicate(b"\n")
    assert used.python_s >= 0.2  # the kernel counts in ticks
    assert used.jvm_s < used.total_s
    assert later.python_s < 0.05


def test_the_clock_can_be_made_while_children_come_and_go():
    """Spark's JVM starts a process for each file of a checkpoint: one ended between two looks at it."""
    with subprocess.Popen(["sh", "-c", "while :; do /bin/true; done"]) as parent:
        try:
            for _ in range(1000):
                ProcessorClock(parent.pid, [])
        finally:
            parent.kill()
