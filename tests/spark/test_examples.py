"""The examples, the notebook and the documentation do and say what is so."""

import json
import os
import re
import runpy
from pathlib import Path

import pytest

from bkspark.spark.option import READ, STREAM, WRITE
from bkspark.spark.option_table import OPTIONS
from bkspark.spark.session import SETTINGS
from tests.pulsar import clicks
from tests.spark import notebooks

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


@pytest.mark.spark
@pytest.mark.cluster
def test_export_example_takes_what_is_new_and_nothing_twice(spark, table, tmp_path):
    export = runpy.run_path(str(ROOT / "examples" / "export.py"))["export"]
    table.write(spark.range(5))
    assert export(spark, table.uri, table.log, tmp_path) == 5
    assert export(spark, table.uri, table.log, tmp_path) == 0
    table.write(spark.range(5, 8))
    died = tmp_path / "to-9-9-9"  # an export without _SUCCESS was not finished
    died.mkdir()
    assert export(spark, table.uri, table.log, tmp_path) == 3
    folders = [str(mark.parent) for mark in tmp_path.glob("*/_SUCCESS")]
    assert sorted(row.id for row in spark.read.parquet(*folders).collect()) == list(range(8))


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.admission_control
def test_windows_example_publishes_windows_that_are_over_and_drops_late_events(spark, cluster, tmp_path, capsys):
    example = runpy.run_path(str(ROOT / "examples" / "windows.py"))
    example["main"](spark, cluster.uri, str(tmp_path / "checkpoint"), "example-events", "example-windows")
    shown = capsys.readouterr().out
    rows = [line.split("|")[2:5] for line in shown.splitlines() if line.startswith("|2026")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["cart", "1", "300.0"],
        ["home", "2", "100.0"],
        ["home", "1", "95.0"],
    ]


@pytest.mark.spark
@pytest.mark.cluster
def test_apache_example_counts_ledgers_and_reads_those_of_one_application(spark, cluster, ledger_of, capsys):
    one = ledger_of([b"one", b"three"], metadata={"application": "example-apache"})
    ledger_of([b"other"], metadata={"application": "example-other"})
    runpy.run_path(str(ROOT / "examples" / "apache_cluster.py"))["main"](spark, cluster.uri, "example-apache")
    shown = capsys.readouterr().out.replace(" ", "")
    assert "|example-apache|1|1|8|" in shown
    assert f"|{one}|2|8|" in shown


@pytest.mark.cluster
def test_edit_log_example_hands_over_and_goes_on_from_its_checkpoint(cluster, capsys):
    runpy.run_path(str(ROOT / "examples" / "edit_log.py"))["main"](cluster.uri, "example-edits")
    printed = capsys.readouterr().out
    assert "overtaken; its edit is not in the log" in printed
    assert "accounts: {'alice': 7, 'bob': 6}" in printed


@pytest.mark.cluster
def test_bulk_load_example_loads_all_lines_and_syncs_at_the_end(cluster, client, tmp_path, capsys):
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"line {number}\n" for number in range(5000)))
    bulk_load = runpy.run_path(str(ROOT / "examples" / "bulk_load.py"))["bulk_load"]
    ledger_id = bulk_load(client, source)
    assert "5000 entries" in capsys.readouterr().out
    reader = client.open(ledger_id)
    assert (reader.is_closed, reader.metadata.type_name) == (True, "VD_JOURNAL")
    assert b"".join(bytes(entry) for batch in reader.batches() for entry in batch) == source.read_bytes()


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
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tour.ipynb", "100000 rows in"),
        ("cluster.ipynb", "5 sensors"),
        ("pulsar.ipynb", "600 copied; 600 after a second run"),
    ],
)
@pytest.mark.long_except(
    "tour.ipynb-100000 rows in",
    reason="11 s of processor time for each; tests/spark guards what they call, and tour.ipynb that notebooks run",
)
def test_notebook_runs_from_top_to_bottom_and_keeps_its_pictures(spark, cluster, client, monkeypatch, name, said):
    if name == "pulsar.ipynb":
        clicks.store(client)
    monkeypatch.setitem(os.environ, "BKSPARK_URI", cluster.uri)
    monkeypatch.setitem(os.environ, "MPLBACKEND", "agg")
    stored = json.loads((notebooks.FOLDER / name).read_text())
    run = notebooks.run(notebooks.FOLDER / name)
    assert said in "".join(printed(run))
    assert pictures(run)
    assert pictures(stored) == pictures(run)
    assert said in "".join(printed(stored))


def pictures(notebook: dict) -> list[int]:
    """Return the cells that drew something, once for each picture."""
    cells = enumerate(notebook["cells"])
    return [at for at, cell in cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]


def printed(notebook: dict) -> list[str]:
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return ["".join(output["text"]) for output in outputs if output["output_type"] == "stream"]


def option_rows() -> list[tuple[str, str, str, str]]:
    """Return (name, for, default, meaning) of each option in the tables of docs/spark.md and docs/pulsar.md."""
    text = "".join((ROOT / "docs" / page).read_text() for page in ("spark.md", "pulsar.md"))
    lines = re.findall(r"^\| `([\w.]+)`(?: ¹)? \|([^|]+)\|([^|]*)\|([^|]+)\|$", text, re.MULTILINE)
    return [(name, uses.strip(), default.strip(), meaning) for name, uses, default, meaning in lines]


DEFAULT_IN_WORDS = {
    "uri": "`BKSPARK_URI`",
    "password": "`BKSPARK_PASSWORD`, else empty",
    "passwordFile": "`BKSPARK_PASSWORD_FILE`",
    "encryptionKeyFile": "`BKSPARK_ENCRYPTION_KEY_FILE`",
    "payloadFormat": "that of the log; in a new log `arrow`, or `raw` for one column `value`; reads of ledgers and of "
    "logs of other programs: `raw`",
    "compressionLevel": "the codec's",
    "startingOffsets": "batch `earliest`, stream `latest`",
    "pulsarUri": "root of `uri`'s servers",
    "pulsarConfigurationUri": "`pulsarUri`",
    "minPartitions": "one task per processor of the driver, each of 16 MiB or more",
}
"""Defaults that depend on more than the option."""
FOR = {
    frozenset({READ, STREAM, WRITE}): r"all",
    frozenset({READ, STREAM}): r"reads",
    frozenset({READ}): r"batch read( of `ledgers`)?",
    frozenset({STREAM}): r"stream read",
    frozenset({WRITE}): r"(batch )?write( with `txnAppId`| of `arrow`|, mode overwrite)?",
}
"""How the table says where an option has effect."""


def test_documentation_has_one_short_line_for_every_option():
    names = [name for name, *_ in option_rows()]
    assert sorted(names) == sorted([*(option.name for option in OPTIONS), "ledgerMetadata.KEY"])
    assert [name for name, _, _, meaning in option_rows() if len(meaning) > 140] == []


def test_documentation_has_the_default_and_the_use_of_every_option_as_the_table_of_the_code():
    options = {option.name: option for option in OPTIONS}
    for name, uses, default, _ in option_rows():
        if name in options:
            stated = DEFAULT_IN_WORDS.get(name, options[name].default or "")
            assert stated in (default, default.strip("`")), name
            assert re.fullmatch(FOR[options[name].uses], uses), name
    assert all(options[name].default in (None, "") for name in DEFAULT_IN_WORDS)


def test_documentation_names_the_values_of_every_option_that_has_few():
    documented = {name: f"{default}{meaning}" for name, _, default, meaning in option_rows()}
    for option in OPTIONS:
        for choice in option.choices:
            assert f"`{choice}`" in documented[option.name], (option.name, choice)


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


@pytest.mark.parametrize("name", ["log4j2.properties", "metrics.properties"])
def test_files_beside_it_give_a_reason_and_what_was_seen_for_every_line(name):
    blocks = (ROOT / "spark-conf" / name).read_text().split("\n\n")[1:]
    for block in blocks:
        reasons = [line for line in block.strip().splitlines() if line.startswith("# ")]
        assert block.startswith("# ")
        assert "Seen: " in " ".join(reasons)
        assert len(reasons) < len(block.strip().splitlines())


def test_no_logger_of_the_settings_repeats_what_its_root_says():
    lines = (ROOT / "spark-conf" / "log4j2.properties").read_text().splitlines()
    levels = dict(line.split(" = ") for line in lines if ".level = " in line)
    root = levels.pop("rootLogger.level")
    assert root not in levels.values()
