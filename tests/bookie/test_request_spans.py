"""Spans of a bookie: one for each batch of V3 requests that carry a caller's span, as its child; none otherwise."""

from __future__ import annotations

import asyncio
import signal
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bkspark import tracing
from bkspark.blocking import Client
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.v3_context import context_value, encode_context
from bookie_service.admin import trace_output
from bookie_service.network.request_spans import caller_of, caller_of_message
from tests import recorded_spans
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.serving import KEY, adds, stored
from tests.bookie.simulated_connections import ServedBookie
from tests.bookie.v3_peer import request
from tests.ledger.in_process import InProcessCluster, run

PATIENCE_S = 5.0
PLACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


spans = recorded_spans.spans


def of_bookies(spans: InMemorySpanExporter, what: str) -> list[ReadableSpan]:
    return [each for each in spans.get_finished_spans() if each.name == f"bookkeeper.bookie.{what}"]


def fact(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {})[f"bookkeeper.{name}"]


def parents(spans: InMemorySpanExporter, what: str) -> set[int]:
    return {each.context.span_id for each in spans.get_finished_spans() if each.name == f"bookkeeper.{what}"}


@pytest.mark.parametrize("protocol_name", ["v2", "v3"])
def test_each_bookie_has_a_span_for_each_batch_of_a_v3_client(
    tmp_path: Path, spans: InMemorySpanExporter, protocol_name: str
) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        client = cluster.client(wire_protocol=protocol_name)
        async with await client.create(ensemble=3, write_quorum=3, ack_quorum=3) as writer:
            await writer.append(b"alone")
            await writer.append_many([b"%d" % number for number in range(500)])
        reader = await client.open(writer.ledger_id)
        assert sum([len(batch) async for batch in reader.batches()]) == 501

    run(tmp_path, scenario)
    added, read = of_bookies(spans, "add"), of_bookies(spans, "read")
    if protocol_name == "v2":
        assert not added + read, "V2 has no place for the caller's span"
        return
    assert {each.parent.span_id for each in added if each.parent} == parents(spans, "append")
    for entries in (1, 500):
        (batch,) = {each.context.span_id for each in spans.get_finished_spans() if _is_append(each, entries)}
        children = [each for each in added if each.parent and each.parent.span_id == batch]
        assert sum(int(str(fact(each, "entries"))) for each in children) == 3 * entries
        assert len(children) < 3 * 20, "a span for each batch, not for each entry"
    assert {each.parent.span_id for each in read if each.parent} <= parents(spans, "read") | parents(spans, "open")
    assert sum(int(str(fact(each, "found"))) for each in read) >= 501
    assert {each.kind for each in added + read} == {SpanKind.SERVER}
    assert all(each.start_time is not None and each.end_time is not None for each in added + read)


def _is_append(span: ReadableSpan, entries: int) -> bool:
    return span.name == "bookkeeper.append" and fact(span, "entries") == entries


def test_what_a_bookie_refuses_is_a_span_with_the_reason(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    async def scenario(cluster: InProcessCluster) -> None:
        client = cluster.client(wire_protocol="v3")
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"one")
        await client.recover(writer.ledger_id)
        with pytest.raises(BookKeeperError):
            await writer.append_many([b"two", b"three"])
        writer.abandon()

    run(tmp_path, scenario, bookies=1)
    refused = [each for each in of_bookies(spans, "add") if each.status.status_code is StatusCode.ERROR]
    assert [(each.status.description, fact(each, "entries")) for each in refused] == [("EFENCED", 2)]


def test_a_caller_that_is_not_recorded_has_no_children(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=sampling.ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.start(provider)
    try:

        async def scenario(cluster: InProcessCluster) -> None:
            async with await cluster.client(wire_protocol="v3").create(
                ensemble=1, write_quorum=1, ack_quorum=1
            ) as writer:
                await writer.append(b"one")

        run(tmp_path, scenario, bookies=1)
    finally:
        tracing.stop()
    assert not exporter.get_finished_spans()


def test_the_caller_is_found_among_other_values_of_a_request(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    """Apache's clients send all of their log context, in fields of any order."""
    key, entry = bytes(20), struct.pack(">qqqq", 7, 0, -1, 1) + bytes(4) + b"x"
    messages = (
        (protocol.ADD_ENTRY, {"addRequest": {"ledgerId": 7, "entryId": 0, "masterKey": key, "body": entry}}),
        (protocol.READ_ENTRY, {"readRequest": {"ledgerId": 7, "entryId": 0}}),
    )

    async def scenario(cluster: InProcessCluster) -> None:
        host, port = cluster.bookies[0].id.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for operation, message in messages:
            request = protocol.Request(header=v3.header(operation, 1), **message)
            for name, value in (("user", "amy"), (tracing.TRACEPARENT, PLACE), ("job", "7")):
                request.requestContext.add(key=name, value=value)
            writer.write(v3.encode_message(request))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.close()

    run(tmp_path, scenario, bookies=1)
    for what in ("add", "read"):
        (span,) = of_bookies(spans, what)
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PLACE[3:-3]
        assert (fact(span, "ledger"), fact(span, "first_entry"), fact(span, "entries")) == (7, 0, 1)


WRONG_PLACES = [
    "",
    "x",
    PLACE[:-1],
    PLACE.replace("0af7", "zzzz"),
    "00-" + "0" * 32 + PLACE[35:],
    "0" * 10_000,
    "\ud800",
]


@pytest.mark.parametrize("place", WRONG_PLACES)
def test_a_damaged_place_of_a_caller_makes_no_span_and_no_line(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    assert tracing.CallerSpan.of(place) is None
    assert not caplog.records
    assert tracing.CallerSpan.of(PLACE) is not None


def test_a_context_has_the_bytes_that_protobuf_gives_it(spans: InMemorySpanExporter) -> None:
    request = protocol.Request(header=v3.header(protocol.READ_LAC, 7))
    before = request.SerializeToString()
    request.requestContext.add(key=tracing.TRACEPARENT, value=PLACE)
    field = encode_context(tracing.TRACEPARENT, PLACE)
    assert request.SerializeToString() == before + field
    pair = request.requestContext[0].SerializeToString()
    assert context_value(pair, tracing.TRACEPARENT) == PLACE
    assert context_value(pair, "other") == ""
    assert context_value(pair[:-1], tracing.TRACEPARENT) == ""
    not_text = pair[:-1] + b"\xff"
    request.requestContext[0].MergeFromString(not_text)
    for found in (
        caller_of(not_text),
        caller_of_message(request.requestContext),
    ):
        assert found is None


# ---- a bookie as a process ----


@pytest.mark.cluster
def test_the_configuration_turns_spans_on(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    bookie = BookieChild(tmp_path / "bookie", uri, tracingEnabled="true")
    with bookie.running() as process:
        provider = TracerProvider()
        tracing.start(provider)
        try:
            with (
                Client(uri, wire_protocol="v3") as client,
                client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer,
            ):
                writer.append_many([b"one", b"two"])
        finally:
            tracing.stop()
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        shown = "".join(process.lines(time.monotonic() + STOP_S))
    assert '"bookkeeper.bookie.add"' in shown
    assert bookie.id in shown


def test_a_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(ConfigurationError, match="'carrier-pigeon' is not installed: set OTEL_TRACES_EXPORTER"):
        trace_output.check()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, none")
    assert trace_output.exporter_names() == ["console"]
    trace_output.check()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert trace_output.exporter_names() == ["otlp_proto_grpc"]


class StuckExporter(SpanExporter):
    """An exporter whose server is down: it tries again until it is shut down."""

    def __init__(self) -> None:
        self.is_asked, self.is_shut_down = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.is_shut_down.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.is_shut_down.set()


def test_an_exporter_that_reaches_no_server_does_not_keep_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """A bookie that had stopped stayed for 30 s, with its directories locked: its restart took that long."""
    exporter, provider = StuckExporter(), TracerProvider(shutdown_on_exit=False)
    stop = trace_output.exporting(provider, [exporter], last_s_max=0.0)
    with tracing.span("any", {}):
        pass
    stop()
    assert exporter.is_shut_down.wait(PATIENCE_S)
    assert "the last spans are lost" in caplog.text
    assert tracing.tracer is None


class SlowlyEndingExporter(StuckExporter):
    """An exporter that waits, when it is shut down, for the export that it carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def shutdown(self) -> None:
        self.may_end.wait()
        super().shutdown()


def test_an_exporter_that_does_not_end_does_not_keep_the_process() -> None:
    """Older exporters of OTLP by gRPC wait up to 30 s for the export: the restart of the bookie took that long."""
    slow, other = SlowlyEndingExporter(), StuckExporter()
    stop = trace_output.exporting(TracerProvider(shutdown_on_exit=False), [slow, other], last_s_max=0.0)
    with tracing.span("any", {}):
        pass
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
    has_stopped, is_other_ended = not stopping.is_alive(), other.is_shut_down.wait(PATIENCE_S)
    slow.may_end.set()
    stopping.join()
    assert (has_stopped, is_other_ended) == (True, True)


def test_last_spans_are_exported_before_the_process_ends() -> None:
    exporter = InMemorySpanExporter()
    stop = trace_output.exporting(TracerProvider(shutdown_on_exit=False), [exporter])
    with tracing.span("the last one", {}):
        pass
    stop()
    assert [each.name for each in exporter.get_finished_spans()] == ["the last one"]


def test_connection_whose_add_has_a_span_is_owed_its_answer_by_itself(spans: InMemorySpanExporter) -> None:
    """The span's part is around the connection: another object."""
    served = ServedBookie()
    writer, connected = served.connect(), served.connect()
    writer.received += adds(5, 0, [b"x"])
    served.turns_until(lambda: bool(writer.sent), 20)
    add = request(protocol.ADD_ENTRY, 1, ledgerId=5, entryId=1, masterKey=KEY, body=stored(5, 1, b"one"))
    add.requestContext.add(key=tracing.TRACEPARENT, value=PLACE)
    connected.received += v3.encode_message(add)
    served.loop.turn()
    served.loop.turn()
    assert served.bookie.owed() == {served.connections[connected]}
    served.turns_until(lambda: bool(connected.sent), 20)
    assert [each.name for each in spans.get_finished_spans()] == ["bookkeeper.bookie.add"]
