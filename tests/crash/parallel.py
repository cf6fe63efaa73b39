"""Campaigns in several processes, without Python's search for cyclic garbage, and what their commands print."""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import logging
import multiprocessing
import resource
import sys
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Protocol, TypeVar

from tests.crash.audit import Violation

Part = TypeVar("Part")
Result = TypeVar("Result")


class CampaignPart(Protocol):
    """A part of a campaign that any process can run. It can be pickled."""

    def run(self) -> Counter[str]:
        """Return the counts of the part. Raises Violation."""


def counts_of(parts: Iterable[CampaignPart], processes: int = 1) -> Generator[Counter[str], None, None]:
    """Run the parts, and yield the counts of each, in order.

    Raises:
        Violation: of the first part that has one.
    """
    with _mapping(processes) as in_order:
        for counts in in_order(_outcome, iter(parts)):
            if isinstance(counts, Violation):
                raise counts
            yield counts


def _outcome(part: CampaignPart) -> Counter[str] | Violation:
    with rare_collections():
        try:
            return part.run()
        except Violation as violation:
            # Without its causes, which another process may be unable to send.
            return Violation(str(violation))


def campaign_parser(name: str, doc: str | None, share_of: str | None = None) -> argparse.ArgumentParser:
    """Return a parser of what all campaigns take.

    Args:
        name: the module, below tests.crash. doc: its docstring.
        share_of: what `--share` takes a part of; None: the campaign has no such option.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.crash.{name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="processes that share the work (default 1)")
    if share_of is not None:
        parser.add_argument("--share", type=float, default=1.0, help=f"part of {share_of}, by the seed (default all)")
    return parser


def report(seed: int, run: Callable[[], Counter[str]], done: str | None = None) -> int:
    """Run a campaign for its command, and print its counts or its violation; return the exit code.

    `done`: the count of what was tried; its share of the count `due` is the coverage. None: everything was tried.
    """
    # Each start says what it found, and each pass of garbage collection what it keeps.
    logging.disable()
    try:
        counts = run()
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    coverage = {} if done is None else {"coverage": round(counts[done] / counts.pop("due"), 4)}
    facts = {"seed": seed, **counts, **coverage, "violations": 0, "processor_seconds": processor_seconds()}
    print(json.dumps(facts))
    return 0


@contextlib.contextmanager
def _mapping(processes: int) -> Iterator[Callable[[Callable[[Part], Result], Iterator[Part]], Iterator[Result]]]:
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
