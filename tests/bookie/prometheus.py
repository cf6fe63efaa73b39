"""A real Prometheus that scrapes one bookie, and the expressions that dashboards ask it for.

The expressions have the forms that dashboards use, metric by metric: rates of counters, sums by instance, quantiles by
label, shares of success, counts by value. `published_panels` has those of published dashboards. `BKSPARK_DASHBOARDS`
names a folder with more of them: Grafana's JSON.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from bkspark.cli.ports import free_ports

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "bookies.json"
FOLDER = "BKSPARK_DASHBOARDS"
PROMETHEUS = shutil.which("prometheus")
WINDOW = "10s"
ADD, READ = "bookkeeper_server_ADD_ENTRY", "bookkeeper_server_READ_ENTRY"
SYNC, JOURNAL_ADD = "bookie_journal_JOURNAL_SYNC", "bookie_journal_JOURNAL_ADD_ENTRY"
DB = 'ledgerDir!=""'
EXPRESSIONS = [
    "count(bookie_SERVER_STATUS == 1)",
    "count(bookie_SERVER_STATUS == 0) or vector(0)",
    *(
        f'{name}{{success="true", quantile="{share}"}}'
        for name in (ADD, READ, f"{ADD}_REQUEST", f"{READ}_REQUEST", JOURNAL_ADD, SYNC)
        for share in ("0.5", "0.99", "0.999", "1.0")
    ),
    *(f"avg({name}{{success='true', quantile='0.99'}}) by (instance)" for name in (ADD, READ)),
    *(f'sum(rate({name}_count{{success="true"}}[{WINDOW}]))' for name in (ADD, READ, JOURNAL_ADD, SYNC)),
    *(
        f'sum(rate({name}_count{{success="true"}}[{WINDOW}])) / sum(rate({name}_count[{WINDOW}])) * 100'
        for name in (ADD, READ)
    ),
    *(f"sum({name}_IN_PROGRESS) by (instance)" for name in (ADD, READ)),
    *(f"sum({name}_BLOCKED) by (instance)" for name in (ADD, READ)),
    "sum(bookkeeper_server_thread_executor_queue) by (thread)",
    *(f"sum(rate(bookie_{what}_BYTES[{WINDOW}])) by (instance)" for what in ("WRITE", "READ")),
    "bookie_journal_JOURNAL_QUEUE_SIZE",
    "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
    *(f"sum(bookie_{what}_count{{{DB}}}) by (instance)" for what in ("ledgers", "entries")),
    *(f"sum(bookie_{what}_cache_size{{{DB}}}) by (instance)" for what in ("write", "read")),
    f"sum(rate(bookie_read_cache_hits[{WINDOW}])) / "
    f"(sum(rate(bookie_read_cache_hits[{WINDOW}])) + sum(rate(bookie_read_cache_misses[{WINDOW}])))",
    f"sum(rate(bookie_read_entry_count[{WINDOW}]))",
    f"rate(bookie_readahead_batch_count_sum[{WINDOW}]) / rate(bookie_readahead_batch_count_count[{WINDOW}]) > 0",
    "sum(bookie_ledger_writable_dirs)",
    '{__name__=~"bookie_ledger_dir_.*_usage"}',
    *(f"sum({name})" for name in ("bookie_DELETED_LEDGER_TOTAL", "bookie_MAJOR_COMPACTION_TOTAL")),
    "sum(bookie_MINOR_COMPACTION_TOTAL)",
    *(f"sum(rate(bookie_RECLAIMED_{what}_SPACE_BYTES[{WINDOW}]))" for what in ("DELETION", "COMPACTION")),
    "bookie_ACTIVE_ENTRY_LOG_TOTAL",
    "bookie_ACTIVE_LEDGER_TOTAL > 0",
    f"histogram_quantile(0.99, sum(rate(bkspark_bookie_add_stage_seconds_bucket[{WINDOW}])) by (le, stage)) > 0",
    f"histogram_quantile(0.99, sum(rate(bkspark_bookie_read_seconds_bucket[{WINDOW}])) by (le)) > 0",
    f"rate(process_cpu_seconds_total[{WINDOW}]) > 0",
    "process_resident_memory_bytes > 0",
    "time() - process_start_time_seconds > 0",
]
_INTERVAL = re.compile(r"\[\$\{?\w*[iI]nterval\w*\}?\]|\[\[\[\w*[iI]nterval\w*\]\]\]")
_VARIABLE = re.compile(r"\$\{?\w+(?::\w+)?\}?|\[\[\w+\]\]")


needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="there is no prometheus on the PATH; Debian's package has it"
)


def panels(dashboard: Path) -> list[str]:
    """Return the expressions of a dashboard, its variables replaced: intervals by `WINDOW`, others by any text."""

    def expressions(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("expr"), str) and node["expr"]:
                yield node["expr"]
            node = list(node.values())
        if isinstance(node, list):
            for each in node:
                yield from expressions(each)

    found = expressions(json.loads(dashboard.read_text()))
    return [_VARIABLE.sub(".*", _INTERVAL.sub(f"[{WINDOW}]", expression)) for expression in found]


def published_panels() -> list[str]:
    """Return the expressions of the dashboards in the folder that `BKSPARK_DASHBOARDS` names."""
    folder = os.environ.get(FOLDER)
    return [] if folder is None else [each for path in sorted(Path(folder).glob("*.json")) for each in panels(path)]


@contextmanager
def running_prometheus(directory: Path, target: int) -> Iterator[int]:
    """Run a Prometheus that scrapes this port every second; yield its own port."""
    directory.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    configuration = directory / "prometheus.yml"
    configuration.write_text(
        f"scrape_configs: [{{job_name: bookie, scrape_interval: 1s, "
        f"static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    assert PROMETHEUS is not None
    command = [PROMETHEUS, f"--config.file={configuration}", f"--storage.tsdb.path={directory / 'tsdb'}"]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


def is_filled(port: int, expression: str) -> bool:
    """Return whether an expression has a result that is a number."""
    query = urlencode({"query": expression, "time": f"{time.time():.3f}"})
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30) as reply:
            answer = json.load(reply)
    except OSError:
        return False  # it starts
    assert answer["status"] == "success", answer
    return any(not math.isnan(float(row["value"][1])) for row in answer["data"]["result"])
