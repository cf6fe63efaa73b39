"""Every behaviour of a small cluster: breadth-first over the product's cores.

`python -m tests.simulation.exhaustive [--model NAME]` looks at every state that `small_model` can come to. Nothing is
left out, and nothing is worked out twice: a level of the search is an array of words (`model_words`), what can happen
to a client is looked up by the part of a word that decides it, and what follows a whole level takes a few array
operations.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np

from bkspark.core import recovery as recovery_module
from tests.planting import replaced
from tests.simulation.model_words import CRASHES, DISKS, LOSSES, OWNER, STORED, WORD, Client, Field, Rules, Words
from tests.simulation.small_model import Model

MODELS = {
    "2/2": ((2, 2, 2), 1),
    "3/2": ((3, 3, 2), 1),
    "2/2, two entries": ((2, 2, 2), 2),
    "3/2, two entries": ((3, 3, 2), 2),
}
"""Quorums (E, Qw, Qa) and entries, by name."""
COMPLETE = ("2/2", "3/2")
"""The models that run by default: the search of each ends, with two losses and a crash."""
STATES_MAX = 400_000_000
CHUNK = 1 << 18
"""States whose successors are worked out at once."""
REPORT_SECONDS = 10.0


class WordSet:
    """A set of words: open addressing in one array, at most three quarters full."""

    def __init__(self) -> None:
        self._slots = np.zeros(1 << 16, np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def words(self) -> Words:
        return self._slots[self._slots != 0]

    def add(self, words: Words) -> np.ndarray:
        """Add words, none twice and none 0; return a mask of those that are new."""
        while 4 * (self._count + len(words)) > 3 * len(self._slots):
            kept = self.words
            self._slots = np.zeros(2 * len(self._slots), np.uint64)
            for begin in range(0, len(kept), CHUNK):
                self._insert(kept[begin : begin + CHUNK])
        is_new = self._insert(words)
        self._count += int(np.count_nonzero(is_new))
        return is_new

    def _insert(self, words: Words) -> np.ndarray:
        slots = self._slots
        last = np.uint64(len(slots) - 1)
        mixed = (words ^ words >> np.uint64(29)) * np.uint64(0x9E3779B97F4A7C15)
        at = (mixed ^ mixed >> np.uint64(32)) & last
        is_new = np.zeros(len(words), bool)
        left = np.arange(len(words))
        while len(left):
            mine, place = words[left], at[left]
            held = slots[place]
            is_free = held == 0
            # If several could have a free slot, the last one gets it.
            slots[place[is_free]] = mine[is_free]
            is_mine = slots[place] == mine
            is_new[left[is_free & is_mine]] = True
            left = left[~is_mine]
            at[left] = (at[left] + np.uint64(1)) & last
        return is_new


class _Moves:
    """What can happen to one client, by footprint: runs of an array, of each of which the first part costs no loss."""

    def __init__(self, rules: Rules, client: Client) -> None:
        self._rules = rules
        self._client = client
        self._footprint = np.uint64(client.footprint)
        self._rows: dict[int, int] = {}
        self._moves, self._losses_begin, self._begins = array("Q"), array("q"), array("q", [0])

    def following(self, states: Words) -> tuple[Words, np.ndarray]:
        """Return (states that follow, the index in `states` of each)."""
        seen, row_of = np.unique(states & self._footprint, return_inverse=True)
        rows = np.fromiter(map(self._row, seen.tolist()), np.int64, len(seen))[row_of]
        begins = np.frombuffer(self._begins, np.int64)[rows]
        with_losses, without = np.frombuffer(self._begins, np.int64), np.frombuffer(self._losses_begin, np.int64)
        ends = np.where(LOSSES.of(states) > 0, with_losses[rows + 1], without[rows])
        counts = ends - begins
        source = np.repeat(np.arange(len(states)), counts)
        at = np.arange(len(source)) + np.repeat(begins + counts - np.cumsum(counts), counts)
        moves = np.frombuffer(self._moves, np.uint64)[at]
        return moves + (states & ~self._footprint)[source], source

    def _row(self, footprint: int) -> int:
        row = self._rows.get(footprint)
        if row is None:
            row = self._rows[footprint] = len(self._rows)
            moves, losses = self._rules.moves(self._client, footprint)
            self._moves.extend(moves)
            self._losses_begin.append(len(self._moves))
            self._moves.extend(losses)
            self._begins.append(len(self._moves))
        return row


@dataclass(slots=True)
class Found:
    """What a search came to: how many states, whether that is all of them, and a shortest way to a wrong one.

    `depth` counts the steps to the farthest state, `transitions` all that were looked at; `seconds` are of processor.
    """

    states: int = 0
    is_complete: bool = False
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    wrong: str = ""
    path: list[str] = field(default_factory=list)


@contextlib.contextmanager
def one_entry_at_a_time() -> Iterator[None]:
    """Have recoveries read one entry at a time: what else a window holds is neither acknowledged nor missing."""
    with replaced(recovery_module, "WINDOW_FIRST", 1), replaced(recovery_module, "WINDOW_ENTRIES_MAX", 1):
        yield


class Search:
    """Looks at every state of a model, nearest first."""

    def __init__(self, model: Model, states_max: int = STATES_MAX) -> None:
        self.model = model
        self.states_max = states_max
        self.rules = Rules(model)
        self.seen = WordSet()
        self.found = Found()
        self._clients = (self.rules.owner, self.rules.recoverer)
        self._moves = [_Moves(self.rules, client) for client in self._clients]
        self._levels: list[Words] = []

    def run(self, report: Callable[[str], None] = lambda line: None) -> Found:
        """Search to the end, to a wrong state, or to `states_max` states."""
        with one_entry_at_a_time():
            began, found = time.process_time(), self.found
            first = np.array([self.rules.word(self.model.first())], np.uint64)
            self.seen.add(first)
            self._levels = [first]
            reported = time.monotonic()
            while len(self._levels[-1]) and not found.wrong:
                level: list[Words] = []
                for begin in range(0, len(self._levels[-1]), CHUNK):
                    level.append(self._look(self._levels[-1][begin : begin + CHUNK]))
                    if found.wrong or len(self.seen) > self.states_max:
                        break
                    if time.monotonic() - reported > REPORT_SECONDS:
                        reported = time.monotonic()
                        report(self._progress(sum(map(len, level)) + max(0, len(self._levels[-1]) - begin - CHUNK)))
                if len(self.seen) > self.states_max:
                    break
                self._levels.append(np.concatenate(level))
            found.is_complete = not found.wrong and not len(self._levels[-1])
            found.states, found.seconds = len(self.seen), time.process_time() - began
        return found

    def _progress(self, waiting: int) -> str:
        counts = f"{len(self.seen)} states, {waiting} waiting, depth {self.found.depth}, {_mebibytes()} MiB"
        return f"{counts}; {len(self.rules.owner.parties)} owners, {len(self.rules.recoverer.parties)} recoverers"

    def _look(self, states: Words) -> Words:
        """Return which new states follow that have a future."""
        following = np.sort(np.concatenate([words for words, _ in self.following(states)]))
        self.found.transitions += len(following)
        following = following[np.diff(following, prepend=np.uint64(0)) != 0]
        following = following[self.seen.add(following)]
        if len(following):
            self.found.depth = len(self._levels)
        is_closed = self._of_each(STORED, following, self.rules.has_been_closed)
        self._judge(following[is_closed])
        owner_ended, recoverer_gone = (
            self._of_each(client.place, following, client.has_ended.__getitem__) for client in self._clients
        )
        return following[~(recoverer_gone & (owner_ended | ~is_closed))]

    def following(self, states: Words) -> Iterator[tuple[Words, np.ndarray]]:
        """Yield (states that follow, the index in `states` of each)."""
        for moves in self._moves:
            yield moves.following(states)
        able = np.flatnonzero(CRASHES.of(states))
        for name in self.model.bookies if len(able) else ():
            disks = self._of_each(DISKS, states[able], functools.partial(self.rules.disks_crashed, name))
            source = able[disks >= 0]
            words = states[source]
            after = disks[disks >= 0].astype(np.uint64) << np.uint64(DISKS.shift)
            changed = DISKS.mask
            for client in self._clients:
                parties = self._of_each(client.place, words, functools.partial(self.rules.crashed, name, client))
                after |= parties.astype(np.uint64) << np.uint64(client.place.shift)
                changed |= client.place.mask
            yield (words & np.uint64(WORD ^ changed) | after) - np.uint64(1 << CRASHES.shift), source

    def _of_each(self, part: Field, words: Words, what: Callable[[int], int]) -> np.ndarray:
        """Return what is so of a part of each word, worked out once for equal ones."""
        seen, which = np.unique(part.of(words), return_inverse=True)
        return np.array([what(one) for one in seen.tolist()], None if len(seen) else bool)[which]

    def _judge(self, words: Words) -> None:
        """Look for something wrong in states whose ledger is closed."""
        acknowledged = self._of_each(OWNER, words, self.rules.owner.acknowledged.__getitem__)
        places = words & np.uint64(DISKS.mask | STORED.mask)
        facts = places | (acknowledged + 1).astype(np.uint64) << np.uint64(OWNER.shift)
        for fact in np.unique(facts):
            last = int(OWNER.of(fact)) - 1
            wrong = self.rules.wrong(last, int(DISKS.of(fact)), int(STORED.of(fact)))
            if wrong:
                self.found.wrong = wrong
                self.found.path = self._path(int(words[np.argmax(facts == fact)]))
                return

    def _path(self, last: int) -> list[str]:
        """Return a shortest way to a state, gone on the model itself."""
        words = [last]
        for level in reversed(self._levels):
            words.append(self._before(level, words[-1]))
        state, steps = self.model.first(), []
        for word in words[-2::-1]:
            for what, following in self.model.following(state):
                self.model.forget(following)
                if self.rules.word(following) == word:
                    steps.append(what)
                    state = following
                    break
            else:
                raise AssertionError(f"the model has no step to {word:#x} after {steps}")
        assert self.model.wrong(state)
        return steps

    def _before(self, level: Words, word: int) -> int:
        for begin in range(0, len(level), CHUNK):
            states = level[begin : begin + CHUNK]
            for following, source in self.following(states):
                found = np.flatnonzero(following == np.uint64(word))
                if len(found):
                    return int(states[source[found[0]]])
        raise AssertionError(f"no state leads to {word:#x}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive", description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=[*MODELS], help=f"one of the models (default: {', '.join(COMPLETE)})")
    parser.add_argument("--states", type=int, default=STATES_MAX, help="most states of each model, 32 bytes each")
    parser.add_argument("--losses", type=int, choices=range(4), default=2)
    parser.add_argument("--crashes", type=int, choices=range(4), default=1)
    options = parser.parse_args(arguments)
    failed = False
    for name in [options.model] if options.model else COMPLETE:
        quorums, entries = MODELS[name]
        search = Search(Model(quorums, entries, options.losses, options.crashes), options.states)
        found = search.run(functools.partial(_report, name))
        facts = {"model": name, "losses": options.losses, "crashes": options.crashes, **asdict(found)}
        print(json.dumps({**facts, "MiB": _mebibytes()}), flush=True)
        failed = failed or bool(found.wrong)
    return 1 if failed else 0


def _report(name: str, line: str) -> None:
    print(f"{name}: {line}", file=sys.stderr, flush=True)


def _mebibytes() -> int:
    """Return the most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    sys.exit(main())
