"""The examples, the notebook and the documentation do and say what is so."""

import json
import os
import runpy
from pathlib import Path

import pytest

from bkspark.spark.options import OPTIONS
from bkspark.spark.session import SETTINGS

ROOT = Path(__file__).parents[2]


@pytest.mark.spark
@pytest.mark.cluster
def test_batch_example_shows_the_revenue(spark, cluster, capsys):
    runpy.run_path(str(ROOT / "examples" / "batch.py"))["main"](spark, cluster.uri, "example-orders")
    assert "88838.75" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.admission_control
def test_streaming_example_counts_the_words(spark, cluster, tmp_path, capsys):
    example = runpy.run_path(str(ROOT / "examples" / "streaming.py"))
    example["main"](spark, cluster.uri, str(tmp_path / "checkpoint"), "example-sentences", "example-counts")
    assert "|  the|    3|" in capsys.readouterr().out


@pytest.mark.cluster
def test_edit_log_example_hands_over_and_goes_on_from_its_checkpoint(cluster, capsys):
    runpy.run_path(str(ROOT / "examples" / "edit_log.py"))["main"](cluster.uri, "example-edits")
    told = capsys.readouterr().out
    assert "overtaken; its edit is not in the log" in told
    assert "accounts: {'alice': 7, 'bob': 6}" in told


@pytest.mark.cluster
def test_tail_example_follows_a_log_across_ledgers(cluster, client, capsys):
    with client.log("example-tail").open_for_writing() as writer:
        writer.append_many([b"one", b"two"])
        writer.roll()
        writer.append_many([b"three"])
    tail = runpy.run_path(str(ROOT / "examples" / "tail.py"))["tail"]
    place = tail(client, "example-tail", 2)
    assert "three" not in capsys.readouterr().out
    tail(client, "example-tail", 1, place)
    assert capsys.readouterr().out.endswith("entry 0: three\n")


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.admission_control
def test_notebook_runs_from_top_to_bottom(spark, cluster, monkeypatch, capsys):
    monkeypatch.setitem(os.environ, "BKSPARK_URI", cluster.uri)
    notebook = json.loads((ROOT / "notebooks" / "tour.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names)
    assert "100000 rows in" in capsys.readouterr().out


def test_documentation_names_every_option():
    text = (ROOT / "docs" / "spark.md").read_text()
    assert [option.name for option in OPTIONS if f"`{option.name}`" not in text] == []


def test_settings_file_and_session_set_the_same():
    lines = (ROOT / "spark-conf" / "spark-defaults.conf").read_text().splitlines()
    assert dict(line.split() for line in lines if line and not line.startswith("#")) == SETTINGS


def test_settings_file_gives_a_reason_for_every_line():
    blocks = (ROOT / "spark-conf" / "spark-defaults.conf").read_text().split("\n\n")[1:]
    for block in blocks:
        *reasons, setting = block.strip().splitlines()
        assert reasons
        assert all(line.startswith("# ") for line in reasons)
        assert setting.startswith("spark.")
