"""Named stages of a read or write: points at which a test ends a process exactly.

    task.begun         a task attempt of a write has started
    task.wrote         it has sent entries, or holds them, and has not reported
    task.closed        what it wrote is durable; its report is on the way
    commit.begun       the driver has all reports, and has done nothing yet
    commit.appended    the rows of the reports are durable in a shared ledger; the log does not list them
    commit.published   the log lists the epoch; attempts that lost are not deleted, Spark has not recorded it
    commit.done        everything is done, but Spark has not recorded it
    source.planned     the partitions of a micro-batch are planned
    source.read        a task of a micro-batch has received entries of its partition that Spark does not have

The variable BKSPARK_STAGES names a function, `module:function`, that is called with the stage's name. Without it
nothing happens.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

VARIABLE = "BKSPARK_STAGES"

_Item = TypeVar("_Item")


def _named() -> Callable[[str], None] | None:
    target = os.environ.get(VARIABLE)
    if not target:
        return None
    module, _, function = target.partition(":")
    found: Callable[[str], None] = getattr(importlib.import_module(module), function)
    return found


listener: Callable[[str], None] | None = _named()
"""Called with each stage that this process reaches."""


def reach(stage: str) -> None:
    """Report that this process has reached a stage."""
    if listener is not None:
        listener(stage)


def reached_by_each(stage: str, items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield the items, and report before each that this process has reached a stage."""
    for item in items:
        reach(stage)
        yield item
