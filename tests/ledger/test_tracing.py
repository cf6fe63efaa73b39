"""OpenTelemetry spans of the client: one for each batch, children of the caller's, and none while tracing is off."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from bkspark import blocking, tracing
from bkspark.client import Client
from bkspark.errors import BookKeeperError, NoSuchLedger
from tests import recorded_spans
from tests.cluster import Cluster

SECRET = "a-password-of-the-test"
PAYLOAD = b"a payload that no span shows"


spans = recorded_spans.spans


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [each for each in spans.get_finished_spans() if each.name == f"bookkeeper.{name}"]


def facts(span: ReadableSpan) -> dict[str, object]:
    return {key.removeprefix("bookkeeper."): value for key, value in (span.attributes or {}).items()}


@pytest.mark.cluster
def test_each_batch_is_a_span_with_what_it_had(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    async def run() -> tuple[int, int]:
        async with Client(cluster.uri, password=SECRET.encode()) as client:
            async with await client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
                await writer.append(PAYLOAD)
                await writer.append_many([PAYLOAD] * 500)
            reader = await client.open(writer.ledger_id)
            assert sum([len(batch) async for batch in reader.batches()]) == 501
            abandoned = await client.create(ensemble=3, write_quorum=2, ack_quorum=2)
            await abandoned.append_many([PAYLOAD] * 3)
            abandoned.abandon()
            await client.recover(abandoned.ledger_id)
            return writer.ledger_id, abandoned.ledger_id

    ledger, recovered = asyncio.run(run())
    created = facts(named(spans, "create")[0])
    assert created == {"ensemble": 3, "write_quorum": 2, "ack_quorum": 2, "ledger": ledger}
    appended = [facts(each) for each in named(spans, "append") if facts(each)["ledger"] == ledger]
    assert [(each["first_entry"], each["entries"], each["bytes"]) for each in appended] == [
        (0, 1, len(PAYLOAD)),
        (1, 500, 500 * len(PAYLOAD)),
    ]
    assert facts(named(spans, "open")[0]) == {"ledger": ledger, "last_entry": 500}
    read = [facts(each) for each in named(spans, "read") if facts(each)["ledger"] == ledger]
    assert sum(int(str(each["entries"])) for each in read) == 501
    assert all(int(str(each["wanted_entries"])) >= int(str(each["entries"])) for each in read)
    assert facts(named(spans, "recover")[0]) == {"ledger": recovered, "last_entry": 2}
    assert all(each.status.status_code is not StatusCode.ERROR for each in spans.get_finished_spans())
    shown = "".join(each.to_json() for each in spans.get_finished_spans())
    assert SECRET not in shown
    assert PAYLOAD.decode() not in shown


@pytest.mark.cluster
def test_spans_are_children_of_the_callers_also_through_blocking_calls(
    cluster: Cluster, spans: InMemorySpanExporter
) -> None:
    tracer = tracing.tracer
    assert tracer is not None
    with blocking.Client(cluster.uri) as client, tracer.start_as_current_span("job") as job:
        with client.create(ensemble=3, write_quorum=2, ack_quorum=2) as writer:
            writer.append_many([PAYLOAD] * 10)
        list(client.open(writer.ledger_id).batches())
    of_job = {each.name for each in spans.get_finished_spans() if each.parent and each.parent.span_id == job_id(job)}
    assert of_job == {"bookkeeper.create", "bookkeeper.append", "bookkeeper.open", "bookkeeper.read"}


def job_id(span: object) -> int:
    return int(span.get_span_context().span_id)  # type: ignore[attr-defined]


@pytest.mark.cluster
def test_what_fails_is_a_span_with_its_error(cluster: Cluster, spans: InMemorySpanExporter) -> None:
    async def run() -> None:
        async with Client(cluster.uri) as client:
            with pytest.raises(NoSuchLedger):
                await client.open(1 << 50)
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3)
            sent = await writer.submit([PAYLOAD])
            await sent
            await client.recover(writer.ledger_id)
            with pytest.raises(BookKeeperError):
                await writer.append_many([PAYLOAD])
            writer.abandon()

    asyncio.run(run())
    (opened,) = named(spans, "open")
    assert opened.status.status_code is StatusCode.ERROR
    assert "NoSuchLedger" in str(opened.status.description)
    failed = [each for each in named(spans, "append") if each.status.status_code is StatusCode.ERROR]
    assert ["LedgerFenced" in str(each.status.description) for each in failed] == [True]


@pytest.mark.cluster
def test_while_tracing_is_off_nothing_is_made_and_nothing_imported(cluster: Cluster) -> None:
    program = f"""
import sys
from bkspark.blocking import Client
with Client({cluster.uri!r}) as client:
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append_many([b"x"] * 10)
    list(client.open(writer.ledger_id).batches())
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    environment = {key: text for key, text in os.environ.items() if key != tracing.VARIABLE}
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False).returncode == 0
    traced = "import sys, bkspark.tracing as t; sys.exit(t.tracer is None)"
    environment[tracing.VARIABLE] = "true"
    assert subprocess.run([sys.executable, "-c", traced], env=environment, timeout=60, check=False).returncode == 0
