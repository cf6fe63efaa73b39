"""The mutants of the product, and a sample of them that a seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.operators import Mutant, mutants_of

MODULES = (
    "bkspark/core/*.py",
    "bkspark/metadata/listing.py",
    "bkspark/net/*.py",
    "bkspark/security/*.py",
    "bkspark/wire/[!b]*.py",
    "bkspark/ledger/*.py",
    "bkspark/log/*.py",
    "bookie_service/cluster/*.py",
    "bookie_service/engine/*.py",
    "bookie_service/gc/*.py",
    "bookie_service/network/*.py",
    "bookie_service/replication/*.py",
    "bookie_service/storage/**/*.py",
)
"""What is mutated: where a defect loses entries, tells readers something that is not so, or lets a stranger in.

The generated module of `bkspark/wire` begins with a b, and no other."""


class Population:
    """All mutants of some modules, and the texts that they were made of."""

    def __init__(self, root: Path, patterns: Iterable[str] = MODULES) -> None:
        self.sources: dict[str, bytes] = {}
        self.mutants: list[Mutant] = []
        for pattern in patterns:
            for path in sorted(root.glob(pattern)):
                name = path.relative_to(root).as_posix()
                if name not in self.sources:
                    self.sources[name] = path.read_bytes()
                    self.mutants += mutants_of(name, self.sources[name])

    def sample(self, seed: int, count: int) -> list[Mutant]:
        """Return `count` mutants that compile, or all.

        A seed puts all mutants into an order that depends on what they are, not on their number: a larger sample begins
        with the smaller one, and a change elsewhere leaves a mutant where it was.
        """
        chosen: list[Mutant] = []
        for mutant in sorted(self.mutants, key=lambda it: hashlib.sha256(f"{seed} {it.id}".encode()).digest()):
            if len(chosen) >= count:
                break
            if mutant.compiles(self.sources[mutant.module]):
                chosen.append(mutant)
        return chosen

    def changed(self, mutant: Mutant) -> bytes:
        """Return the text of the mutant's module with the change."""
        return mutant.applied_to(self.sources[mutant.module])
