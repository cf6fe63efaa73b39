"""A real Prometheus scrapes a loaded bookie and evaluates what dashboards ask for: no panel is empty.

The expressions have the forms that public dashboards of BookKeeper and Pulsar use, metric by metric: rates of counters,
sums by instance, quantiles by label, shares of success, counts by value. Without `prometheus` on the PATH (Debian's
package has it) the test is skipped.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from bkspark.cli.ports import free_ports
from tests.bookie.child import BookieChild
from tests.bookie.test_http_process import HTTP, call
from tests.polling import wait_until

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "bookies.json"
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
_VARIABLES = {"$job": ".*", "$instance": ".*", "$__rate_interval": WINDOW}


def own_panels() -> list[str]:
    """Return the expressions of deploy/grafana/dashboards/bookies.json, its variables replaced."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    for variable, value in _VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


@pytest.mark.cluster
@pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus on the PATH; Debian's package has it")
def test_every_expression_of_dashboards_has_a_value_on_a_loaded_bookie(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, autoRecoveryDaemonEnabled="true")
    with child.running():
        (port,) = free_ports(1)
        configuration = tmp_path / "prometheus.yml"
        configuration.write_text(
            f"scrape_configs: [{{job_name: bookie, scrape_interval: 1s, "
            f"static_configs: [{{targets: ['127.0.0.1:{child.facts['http_port']}']}}]}}]\n"
        )
        ended = threading.Event()
        load = threading.Thread(target=_load, args=(child, ended))
        assert PROMETHEUS is not None
        command = [PROMETHEUS, f"--config.file={configuration}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        load.start()
        try:
            missing = [*EXPRESSIONS, *own_panels()]

            def all_filled() -> bool:
                missing[:] = [expression for expression in missing if not _is_filled(port, expression)]
                return not missing

            try:
                wait_until(all_filled, "every expression to have a value", 60)
            except AssertionError:
                pytest.fail(f"without a value: {json.dumps(missing, indent=1)}")
        finally:
            ended.set()
            load.join()
            process.terminate()
            process.wait(30)


def _load(child: BookieChild, ended: threading.Event) -> None:
    """Add and read, entries that exist and some that do not; collect garbage, so that entries are flushed."""
    with child.connect() as peer:
        first = 0
        while not ended.is_set():
            peer.add(first % 7, first, [b"x" * 300] * 50)
            for entry in range(max(0, first - 500), first + 60, 10):
                peer.read(entry % 7, entry)
            if first % 1000 == 0:
                call(child.facts["http_port"], "/api/v1/bookie/gc", "PUT")
            first += 50


def _is_filled(port: int, expression: str) -> bool:
    """Return whether an expression has a result that is a number."""
    query = urlencode({"query": expression, "time": f"{time.time():.3f}"})
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=30) as reply:
            answer = json.load(reply)
    except OSError:
        return False  # it starts
    assert answer["status"] == "success", answer
    return any(not math.isnan(float(row["value"][1])) for row in answer["data"]["result"])
