"""OpenTelemetry spans of the client, one for each batch: `pip install 'bkspark[tracing]'`. Off until `start` is called.

    bkspark.tracing.start()                     # spans go to the program's tracer provider
    BKSPARK_TRACING=true                        # the same, for programs that do not call it: commands, Spark executors

| Span | From and to | Attributes |
|---|---|---|
| `bookkeeper.create` | a ledger's creation | ensemble size, quorums, ledger |
| `bookkeeper.open` | opening a reader, with its recovery | ledger |
| `bookkeeper.recover` | fence, find the end, close | ledger, last entry |
| `bookkeeper.append` | entries sent together, until all of them are acknowledged | ledger, first entry, count, bytes |
| `bookkeeper.read` | one span of entries, as read ahead | ledger, first entry, wanted count, count, bytes |

A span is a child of the caller's current span. The span of a failed operation has the error's type and message. Spans
contain no entry, password or key. While tracing is off, it costs one comparison for each batch, and OpenTelemetry is
not imported.

A V3 request carries the context of its span (`carried`), so that a bookie can make children of it (`CallerSpan`):
`bookie_service.network.request_spans`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from bkspark.errors import ConfigurationError
from bkspark.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

VARIABLE = "BKSPARK_TRACING"
TRACEPARENT = "traceparent"
"""The name under which requests carry a span's context in the form of W3C's Trace Context: `00-TRACE-SPAN-FLAGS`."""
_TRACEPARENT_MAX = 512
"""A longer one from a peer is ignored."""
SYSTEM = "bookkeeper"
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Attributes = Mapping[str, "str | int"]

tracer: Tracer | None = None
"""Makes the spans; None while tracing is off. Set by `start` and `stop`."""


def start(provider: TracerProvider | None = None) -> None:
    """Turn tracing on. `provider`: the tracer provider of the program's SDK; None: the global one.

    Raises:
        ConfigurationError: the package `opentelemetry-api` is not installed.
    """
    global tracer
    try:
        from opentelemetry import trace
    except ImportError:
        raise ConfigurationError(
            "opentelemetry-api is not installed, which tracing needs: pip install 'bkspark[tracing]'"
        ) from None
    tracer = trace.get_tracer("bkspark", VERSION, provider)


def stop() -> None:
    """Turn tracing off."""
    global tracer
    tracer = None


@contextmanager
def span(name: str, attributes: _Attributes) -> Iterator[Span | None]:
    """Make a span that lasts as long as the block; None while tracing is off."""
    if tracer is None:
        yield None
        return
    with tracer.start_as_current_span(name, attributes=_named(attributes)) as made:
        yield made


def traced(
    name: str, attributes: Callable[..., _Attributes], outcome: Callable[[_T], _Attributes]
) -> Callable[[Callable[_P, Awaitable[_T]]], Callable[_P, Coroutine[Any, Any, _T]]]:
    """Return a decorator that makes a span for each call of a coroutine function.

    Args:
        attributes: returns the span's attributes, from the call's arguments.
        outcome: returns more attributes, from the call's result.
    """

    def decorate(call: Callable[_P, Awaitable[_T]]) -> Callable[_P, Coroutine[Any, Any, _T]]:
        @functools.wraps(call)
        async def caller(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if tracer is None:
                return await call(*args, **kwargs)
            with span(name, attributes(*args, **kwargs)) as made:
                result = await call(*args, **kwargs)
                if made is not None:
                    made.set_attributes(_named(outcome(result)))
                return result

        return caller

    return decorate


async def reading(
    read: Callable[[], Awaitable[_T]], attributes: _Attributes, outcome: Callable[[_T], _Attributes]
) -> _T:
    """Return the result of a read, and make a span for the read."""
    with span("bookkeeper.read", attributes) as made:
        result = await read()
        if made is not None:
            made.set_attributes(_named(outcome(result)))
        return result


class AppendSpan:
    """The span of entries that are sent together, until `end_with`. Made only while tracing is on."""

    def __init__(self, attributes: _Attributes) -> None:
        assert tracer is not None
        self._made = tracer.start_span("bookkeeper.append", attributes=_named(attributes))

    @property
    def place(self) -> str:
        """The span's context, which the entries' requests carry; see `carried`."""
        return carried(self._made)

    def end_with(self, done: asyncio.Future[int]) -> None:
        """End the span when `done` is done."""
        done.add_done_callback(self._end)

    def _end(self, future: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._made.record_exception(error)
            self._made.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        self._made.end()


def carried(made: Span | None = None) -> str:
    """Return the context of a span, or of the current one, as `TRACEPARENT`; "" if there is no span that is sampled."""
    if tracer is None:
        return ""
    from opentelemetry import trace

    place = (made or trace.get_current_span()).get_span_context()
    if not (place.is_valid and place.trace_flags.sampled):
        return ""
    return f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"


@dataclass(frozen=True, slots=True)
class CallerSpan:
    """The client's span, `parent` of those of its requests. began_ns: when the requests arrived, by `time.time_ns`."""

    parent: Context
    began_ns: int

    @classmethod
    def of(cls, traceparent: str) -> CallerSpan | None:
        """Return the caller's span that a request names; None if it names no valid span, or one that is not sampled."""
        if not 0 < len(traceparent) <= _TRACEPARENT_MAX:
            return None  # OpenTelemetry would log a longer text
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        found = TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent})
        place = trace.get_current_span(found).get_span_context()
        return cls(found, time.time_ns()) if place.is_valid and place.trace_flags.sampled else None

    def serve(self, name: str, attributes: _Attributes, error: str = "") -> None:
        """Make the span of requests that were just answered; `error`: why they failed, "" if they did not."""
        if tracer is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        made = tracer.start_span(name, self.parent, SpanKind.SERVER, _named(attributes), start_time=self.began_ns)
        if error:
            made.set_status(Status(StatusCode.ERROR, error))
        made.end()


def _named(attributes: _Attributes) -> dict[str, str | int]:
    return {f"{SYSTEM}.{name}": value for name, value in attributes.items()}


if os.environ.get(VARIABLE, "").lower() in ("true", "1", "yes", "on"):
    start()
