"""How a planted defect gets into the product: a context in which an attribute is another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

Plant = AbstractContextManager[None]


@contextlib.contextmanager
def changed(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute, of a class in whichever of its bases has it, by what `make` returns for the old one."""
    if isinstance(owner, type):
        owner = next(kind for kind in owner.__mro__ if name in vars(kind))
    old = vars(owner)[name]
    setattr(owner, name, make(old))
    try:
        yield
    finally:
        setattr(owner, name, old)


def replaced(owner: Any, name: str, new: Callable[..., Any]) -> Plant:
    """Replace a function."""
    return changed(owner, name, lambda old: new)


def around(kind: Any, name: str, wrap: Callable[..., Any]) -> Plant:
    """Replace a method by `wrap(old, self, *arguments)`."""

    def make(old: Any) -> Any:
        return lambda self, *arguments, **named: wrap(old, self, *arguments, **named)

    return changed(kind, name, make)


def both(*plants: Plant) -> Plant:
    """Plant several parts of one defect."""
    stack = contextlib.ExitStack()
    for plant in plants:
        stack.enter_context(plant)
    return stack
