"""Makes blocking calls from asyncio ones: the same name, arguments, types and documentation.

    class Reader(Twin[aio.Reader]):
        refresh = blocking(aio.Reader.refresh)
        batches = iterating(aio.Reader.batches)
        last_entry = reading(aio.Reader.last_entry)

A blocking call returns what the coroutine of the asyncio call returns. Type checkers, `inspect.signature` and `help`
see that type.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from bkspark.blocking.loop import check_process, iterate, run, run_unless_leaving, submitted

_Asynchronous = TypeVar("_Asynchronous")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_Twin = TypeVar("_Twin")
_T_co = TypeVar("_T_co", covariant=True)


class Twin(Generic[_Asynchronous]):
    """A blocking object that calls an asyncio one."""

    def __init__(self, asynchronous: _Asynchronous) -> None:
        self._asynchronous = asynchronous
        self._made_in = os.getpid()
        """The id of the process that made this object. Constant."""

    @property
    def asynchronous(self) -> _Asynchronous:
        """The asyncio object that this one calls; use it only on this module's loop (`run`, `iterate`).

        Raises:
            RuntimeError: this process was forked from the one that made the object.
        """
        check_process(self._made_in)
        return self._asynchronous

    def _leave(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run what ends a `with` block; nothing in a forked process and at interpreter exit (`run_unless_leaving`)."""
        run_unless_leaving(work, self._made_in)


@overload
def blocking(call: Callable[Concatenate[Any, _P], Awaitable[_T]]) -> Callable[Concatenate[Any, _P], _T]: ...


@overload
def blocking(
    call: Callable[Concatenate[Any, _P], Awaitable[_T]], twin: Callable[[_T], _Twin]
) -> Callable[Concatenate[Any, _P], _Twin]: ...


def blocking(
    call: Callable[Concatenate[Any, _P], Awaitable[_T]], twin: Callable[[_T], Any] | None = None
) -> Callable[Concatenate[Any, _P], Any]:
    """Return a method that waits for a coroutine; with `twin`, it returns the twin of what the coroutine returns."""

    @functools.wraps(call)
    def method(self: Twin[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> Any:
        asynchronous = self.asynchronous
        result = run(lambda: call(asynchronous, *args, **kwargs))
        return result if twin is None else twin(result)

    return _described(method, call, lambda returned: returned if twin is None else twin)


def iterating(
    call: Callable[Concatenate[Any, _P], AsyncIterator[_T]],
) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    """Return a method that yields what an asynchronous generator yields."""

    @functools.wraps(call)
    def method(self: Twin[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        check_process(self._made_in)
        # Not before the first step: the process may be forked between this call and that.
        return iterate(lambda: call(self.asynchronous, *args, **kwargs))

    return _described(method, call, lambda returned: types.GenericAlias(Iterator, typing.get_args(returned)))


def submitting(
    call: Callable[Concatenate[Any, _P], Awaitable[asyncio.Future[_T]]],
) -> Callable[Concatenate[Any, _P], concurrent.futures.Future[_T]]:
    """Return a method that returns a future, for any thread, with the result of the coroutine's future."""

    @functools.wraps(call)
    def method(self: Twin[Any], /, *args: _P.args, **kwargs: _P.kwargs) -> concurrent.futures.Future[_T]:
        asynchronous = self.asynchronous
        return submitted(lambda: call(asynchronous, *args, **kwargs))

    return _described(
        method, call, lambda returned: types.GenericAlias(concurrent.futures.Future, typing.get_args(returned))
    )


class Property(Protocol[_T_co]):
    """What a type checker sees of a property."""

    def __get__(self, instance: Any, owner: Any = None, /) -> _T_co: ...


def reading(attribute: Callable[[Any], _T]) -> Property[_T]:
    """Return a property that reads the asyncio object's; type checkers see a property of a class as its getter."""
    asynchronous = cast(property, attribute)
    assert asynchronous.fget is not None
    getter = asynchronous.fget

    @functools.wraps(getter)
    def get(self: Twin[Any]) -> Any:
        return getter(self._asynchronous)

    return cast(Property[_T], property(get, doc=asynchronous.__doc__))


def _described(method: _Twin, call: Callable[..., object], returns: Callable[[Any], object]) -> _Twin:
    """Give a method the signature of the asyncio call, with the method's own return type."""
    hints = typing.get_type_hints(call)
    returned = returns(hints["return"])
    hints["return"] = None if returned is type(None) else returned
    signature = inspect.signature(call)
    parameters = [it.replace(annotation=hints.get(it.name, it.annotation)) for it in signature.parameters.values()]
    described: Any = method
    described.__annotations__ = hints
    described.__signature__ = signature.replace(parameters=parameters, return_annotation=hints["return"])
    del described.__wrapped__
    return method
