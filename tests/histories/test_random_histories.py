"""The judge on random histories: it takes each that a correct ledger made, and finds the one operation that is wrong.

A ledger is played one operation after the other; each then gets a call before and a return after its moment, so
operations overlap. A defect is one more operation, called when all others are over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.histories import judging
from tests.histories.judging import JudgeMissing
from tests.histories.planted import ended, values
from tests.histories.recording import Recorder

SEEDS = range(60)
STEPS = 25
OVERLAP_NS = 4_000
STEP_NS = 1_000
READERS = ("reader 1", "reader 2")

Played = dict[str, Any]


class PlayedLedger:
    """A ledger that is played by chance."""

    def __init__(self, seed: int, ledger_id: int) -> None:
        self._random = Random(seed)
        self._ledger_id = ledger_id
        self._now_ns = 0
        self._lacs = dict.fromkeys(READERS, -1)
        self._is_relaxed = self._random.random() < 0.3
        self.entries = 0
        """Those that are there."""
        self.promised = 0
        """Those that must stay."""
        self.operations: list[Played] = []

    def play(self) -> None:
        acts = [self._append, self._append, self._lac, self._read, self._deny]
        for _ in range(STEPS):
            self._random.choice(acts)()
        if self._random.random() < 0.8:
            self._append_unknown()
            for who in ("recoverer 1", "recoverer 2", "reader 1"):
                self.add("end" if who.startswith("reader") else "recover", who, **ended(self.entries - 1))
                self._random.choice([self._read, self._deny])()

    def add(self, op: str, client: str, result: str = "ok", *, overlaps: bool = True, **facts: Any) -> None:
        """Let an operation happen now."""
        spread = OVERLAP_NS if overlaps else 0
        self._now_ns += STEP_NS if overlaps else 3 * OVERLAP_NS
        call = max(0, self._now_ns - self._random.randint(0, spread))
        returned = None if result == "unknown" else self._now_ns + 1 + self._random.randint(0, spread)
        line = {"op": op, "client": client, "ledger": self._ledger_id, "call": call, "return": returned}
        self.operations.append({**line, "result": result, **facts})

    def append(self, count: int, *, overlaps: bool = True, result: str = "ok", kept: int | None = None) -> None:
        relaxed = {"relaxed": True} if self._is_relaxed else {}
        ids = range(self.entries, self.entries + count)
        facts = {"first": self.entries, "values": values(ids, "entry"), **relaxed}
        self.add("append", "owner", result, overlaps=overlaps, **facts)
        self.entries += count if kept is None else kept
        if not self._is_relaxed and result == "ok":
            self.promised = self.entries

    def _append(self) -> None:
        self.append(self._random.randint(1, 4))

    def _append_unknown(self) -> None:
        """The last append of an owner that is fenced: some of its entries are kept."""
        count = self._random.randint(1, 5)
        self.append(count, result="unknown", kept=self._random.randint(0, count))

    def _lac(self) -> None:
        reader = self._random.choice(READERS)
        lac = self._lacs[reader] = self._random.randint(self._lacs[reader], self.entries - 1)
        # One after the other: overlapping reads of one reader may return either.
        self.add("lac", reader, overlaps=False, lac=lac)
        self.promised = max(self.promised, lac + 1)

    def _read(self) -> None:
        first = self._random.randint(0, self.entries)
        last = self._random.randint(first, self.entries)
        self.add("read", self._random.choice(READERS), first=first, values=values(range(first, last), "entry"))

    def _deny(self) -> None:
        self.add("read", self._random.choice(READERS), "denied", entry=self.entries + self._random.randint(0, 5))


def lost(ledger: PlayedLedger) -> bool:
    ledger.add("read", "late reader", "denied", overlaps=False, entry=ledger.promised - 1)
    return ledger.promised > 0


def fallen_lac(ledger: PlayedLedger) -> bool:
    for lac in (ledger.promised - 1, ledger.promised - 2):
        ledger.add("lac", "late reader", overlaps=False, lac=lac)
    return ledger.promised > 0


def another_end(ledger: PlayedLedger) -> bool:
    for last in (ledger.entries - 1, ledger.entries):
        ledger.add("recover", "late recoverer", overlaps=False, last_entry=last)
    return True


def end_below_what_was_promised(ledger: PlayedLedger) -> bool:
    ledger.add("recover", "late recoverer", overlaps=False, last_entry=ledger.promised - 2)
    return ledger.promised > 0


def foreign_entry(ledger: PlayedLedger) -> bool:
    ledger.add("read", "late reader", overlaps=False, first=0, values=values([0], "foreign"))
    return True


def append_after_the_end(ledger: PlayedLedger) -> bool:
    ledger.add("recover", "late recoverer", overlaps=False, **ended(ledger.entries - 1))
    ledger.append(1, overlaps=False)
    ledger.add("lac", "late reader", overlaps=False, lac=ledger.entries - 1)
    return True


DEFECTS = (lost, fallen_lac, another_end, end_below_what_was_promised, foreign_entry, append_after_the_end)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return judging.build(tmp_path_factory.mktemp("judge"))
    except JudgeMissing as missing:
        pytest.skip(f"histories are not judged: {missing}")


def played(defect: Callable[[PlayedLedger], bool] | None) -> Iterator[tuple[int, bool, list[Played]]]:
    for seed in SEEDS:
        ledger = PlayedLedger(seed, ledger_id=seed)
        ledger.play()
        is_wrong = defect is not None and defect(ledger)
        yield seed, is_wrong, ledger.operations


def found(judge: Path, folder: Path, ledgers: list[list[Played]]) -> set[int]:
    """Return the ledgers of which the judge complains."""
    path = folder / "history"
    Recorder(path).close()
    with path.open("a") as file:
        for operation in (each for operations in ledgers for each in operations):
            file.write(json.dumps(operation) + "\n")
    findings = judging.judge(judge, path).facts["findings"]
    assert {each["verdict"] for each in findings} <= {"not linearizable"}
    return {int(each["object"].partition(",")[0].removeprefix("ledger ")) for each in findings}


def test_what_a_correct_ledger_shows_is_linearizable(judge: Path, tmp_path: Path) -> None:
    assert found(judge, tmp_path, [operations for _, _, operations in played(None)]) == set()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_one_wrong_operation_is_found_in_every_history(
    judge: Path, tmp_path: Path, defect: Callable[[PlayedLedger], bool]
) -> None:
    wrong = [(seed, operations) for seed, is_wrong, operations in played(defect) if is_wrong]
    assert len(wrong) > len(SEEDS) // 2
    assert found(judge, tmp_path, [operations for _, operations in wrong]) == {seed for seed, _ in wrong}
