"""Where the spans of a bookie go (`tracingEnabled`): to OpenTelemetry's exporters, according to its standard variables.

`OTEL_TRACES_EXPORTER` names the exporters; the default is `otlp`. Each comes in a package of its own. If a program such
as `opentelemetry-instrument` has already set a tracer provider, it stays.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bkspark import tracing
from bkspark.errors import ConfigurationError
from bkspark.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

LAST_SPANS_S_MAX = 3.0
_SENDING_SHARE = 0.9
"""Share of this time for sending the last spans. The rest is for ending exporters that are still sending."""
KEY = "tracingEnabled"
_EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GROUP = "opentelemetry_traces_exporter"
_PACKAGES = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}


def exporter_names() -> list[str]:
    """Return the exporters that the environment names, by the names of their packages."""
    protocol = next((os.environ[name] for name in _PROTOCOL_VARIABLES if os.environ.get(name)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = (name.strip() for name in (os.environ.get(_EXPORTER_VARIABLE) or "otlp").split(","))
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def check() -> None:
    """Raise ConfigurationError if spans could not be exported: a package is missing, or an exporter is unknown."""
    try:
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"{KEY}=true: opentelemetry-sdk is not installed: pip install 'bkspark[tracing]' opentelemetry-sdk"
        ) from None
    for name in exporter_names():
        if not importlib.metadata.entry_points(group=_GROUP, name=name):
            package = _PACKAGES.get(name)
            remedy = f"pip install {package}" if package else f"set {_EXPORTER_VARIABLE} to otlp, console or none"
            raise ConfigurationError(f"{KEY}=true: the exporter {name!r} is not installed: {remedy}")


def start(bookie_id: str) -> Callable[[], None]:
    """Make spans from now on; return a function that sends the last ones and stops. `check` must be called before."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        tracing.start()
        return tracing.stop
    facts = {"service.instance.id": bookie_id, "service.version": VERSION}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        facts["service.name"] = "bookie"
    provider = TracerProvider(resource=Resource.create(facts), shutdown_on_exit=False)
    exporters = []
    for name in exporter_names():
        (found, *_) = importlib.metadata.entry_points(group=_GROUP, name=name)
        exporters.append(found.load()())
    return exporting(provider, exporters)


def exporting(
    provider: TracerProvider, exporters: Sequence[SpanExporter], last_s_max: float = LAST_SPANS_S_MAX
) -> Callable[[], None]:
    """Make spans of a provider for these exporters; return a function that sends the last ones and stops.

    It waits for at most `last_s_max` seconds: a bookie must not stay away because an exporter tries again and again to
    reach a server that is down.
    """
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing.start(provider)

    def stop() -> None:
        tracing.stop()
        deadline, sending_s = time.monotonic() + last_s_max, last_s_max * _SENDING_SHARE
        if not _ends_within(sending_s, provider.shutdown):
            logger.warning("the last spans are lost: they could not be exported within %g s", sending_s)
            for exporter in exporters:
                # Some exporters wait for the export that they carry out.
                _ends_within(deadline - time.monotonic(), exporter.shutdown)

    return stop


def _ends_within(seconds: float, call: Callable[[], object]) -> bool:
    """Run a call on a thread that does not keep the process; return whether it ends in this time."""
    thread = threading.Thread(target=call, name="last-spans", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    return not thread.is_alive()
