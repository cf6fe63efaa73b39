"""The keys that let a bookie's process serve HTTP, and requests to it."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HTTP = {
    "httpServerEnabled": "true",
    "httpServerPort": "0",
    "httpServerHost": "127.0.0.1",
    "statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider",
    "prometheusStatsHttpPort": "0",
    "prometheusStatsHttpAddress": "127.0.0.1",
    "prometheusStatsLatencyRolloverSeconds": "1",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
}


def call(port: int, path: str, method: str = "GET", body: object = None) -> tuple[int, str]:
    """Return (status, body)."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, method=method), timeout=30) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def answer(port: int, path: str, method: str = "GET", body: object = None) -> Any:
    status, text = call(port, path, method, body)
    assert status == 200, text
    return json.loads(text)
