"""Campaigns in several processes, and without Python's search for cyclic garbage."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import multiprocessing
import resource
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


@contextlib.contextmanager
def mapping(processes: int) -> Iterator[Callable[[Callable[[Part], Result], Iterator[Part]], Iterator[Result]]]:
    """Give a map() that may work in several processes, a few calls ahead and no more."""
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), logging.disable) as pool:

        def in_order(call: Callable[[Part], Result], parts: Iterator[Part]) -> Iterator[Result]:
            ahead = deque(pool.submit(call, part) for part in itertools.islice(parts, 2 * processes))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(pool.submit(call, part) for part in itertools.islice(parts, 1))

        yield in_order
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cyclic garbage seldom: disks and bookies by the thousand cost it a fifth of the time.

    More seldom than this, the caches of bookies that are garbage come to gigabytes. Garbage is collected at the end.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(20_000, 5, 5)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(used, 1)
