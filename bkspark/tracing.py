"""OpenTelemetry spans of the client, one for each batch: `pip install 'bkspark[tracing]'`. Off until it is started.

    bkspark.tracing.start()                     # spans go to the program's tracer provider
    BKSPARK_TRACING=true                        # the same, for programs that are not ours: commands, executors of Spark

| Span | From and to | Attributes |
|---|---|---|
| `bookkeeper.create` | a ledger's creation | ensemble size, quorums, ledger |
| `bookkeeper.open` | opening a reader, with its recovery | ledger |
| `bookkeeper.recover` | fence, find the end, close | ledger, last entry |
| `bookkeeper.append` | entries sent together, until all of them are acknowledged | ledger, first entry, count, bytes |
| `bookkeeper.read` | one span of entries, as read ahead | ledger, first entry, wanted count, count, bytes |

A span is the child of the caller's current one. One that fails has the error's type and message. No entry, password or
key is in a span. While tracing is off, a batch costs one comparison, and this module imports nothing.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from bkspark.errors import ConfigurationError
from bkspark.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

VARIABLE = "BKSPARK_TRACING"
SYSTEM = "bookkeeper"
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Attributes = Mapping[str, "str | int"]

tracer: Tracer | None = None
"""Makes the spans; None: tracing is off."""


def start(provider: TracerProvider | None = None) -> None:
    """Make spans from now on. `provider`: of the program's SDK; None: the one that is set globally.

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
    """Make no more spans."""
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
    """Let each call of a coroutine be a span.

    Args:
        attributes: of the span, from the call's arguments. outcome: more of them, from the result.
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
    """Return what a read returns; it is a span."""
    with span("bookkeeper.read", attributes) as made:
        result = await read()
        if made is not None:
            made.set_attributes(_named(outcome(result)))
        return result


def appending(done: asyncio.Future[int], attributes: _Attributes) -> None:
    """Make the span of entries that were just sent; it ends when `done` is."""
    if tracer is None:
        return
    made = tracer.start_span("bookkeeper.append", attributes=_named(attributes))

    def end(future: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            made.record_exception(error)
            made.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        made.end()

    done.add_done_callback(end)


def _named(attributes: _Attributes) -> dict[str, str | int]:
    return {f"{SYSTEM}.{name}": value for name, value in attributes.items()}


if os.environ.get(VARIABLE, "").lower() in ("true", "1", "yes", "on"):
    start()
