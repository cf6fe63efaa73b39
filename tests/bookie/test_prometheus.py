"""A real Prometheus scrapes a loaded bookie and evaluates what dashboards ask for: no panel is empty.

Without `prometheus` on the PATH (Debian's package has it) the test is skipped.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.bookie.child import BookieChild
from tests.bookie.http_process import HTTP, call
from tests.bookie.prometheus import DASHBOARD, EXPRESSIONS, is_filled, needs_prometheus, panels, running_prometheus
from tests.bookie.published_panels import BOOKIES, READ_ONLY
from tests.polling import wait_until


@pytest.mark.cluster
@needs_prometheus
def test_every_expression_of_dashboards_has_a_value_on_a_loaded_bookie(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, autoRecoveryDaemonEnabled="true")
    with child.running(), running_prometheus(tmp_path / "prometheus", int(child.facts["http_port"])) as port:
        ended = threading.Event()
        load = threading.Thread(target=_load, args=(child, ended))
        load.start()
        try:
            _wait_until_filled(port, [*EXPRESSIONS, *BOOKIES, *panels(DASHBOARD)])
        finally:
            ended.set()
            load.join()
        assert call(child.facts["http_port"], "/api/v1/bookie/state/readonly", "PUT", {"readOnly": True})[0] == 200
        _wait_until_filled(port, READ_ONLY)


def _wait_until_filled(port: int, expressions: list[str]) -> None:
    missing = list(expressions)

    def all_filled() -> bool:
        missing[:] = [expression for expression in missing if not is_filled(port, expression)]
        return not missing

    try:
        wait_until(all_filled, "every expression to have a value", 60)
    except AssertionError:
        pytest.fail(f"without a value: {json.dumps(missing, indent=1)}")


def _load(child: BookieChild, ended: threading.Event) -> None:
    """Add and read, entries that exist and some that do not; collect garbage, so that entries are flushed."""
    with child.connect() as peer:
        first = 0
        # Without a pause it takes a processor from the bookie and from Prometheus.
        while not ended.wait(0.01):
            peer.add(first % 7, first, [b"x" * 300] * 50)
            for entry in range(max(0, first - 500), first + 60, 10):
                peer.read(entry % 7, entry)
            if first % 1000 == 0:
                call(child.facts["http_port"], "/api/v1/bookie/gc", "PUT")
            first += 50
