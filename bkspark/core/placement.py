"""Choosing bookies for an ensemble, at random. The random source is an argument, so that a seed decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from bkspark.errors import NotEnoughBookies


class RandomSource(Protocol):
    """What placement asks of a random source; `random.Random` is one."""

    def sample(self, population: Sequence[str], k: int) -> list[str]: ...


def choose_ensemble(writable: Collection[str], ensemble_size: int, random: RandomSource) -> tuple[str, ...]:
    """Return E distinct bookies out of the writable ones, in random order.

    Raises:
        NotEnoughBookies: fewer than E are writable.
    """
    if len(writable) < ensemble_size:
        raise NotEnoughBookies(
            f"an ensemble of {ensemble_size} needs as many writable bookies, there are {len(writable)}: "
            "start more bookies or lower the ensemble size"
        )
    return tuple(random.sample(sorted(writable), ensemble_size))


def choose_replacements(
    ensemble: Sequence[str], failed_slots: Collection[int], writable: Collection[str], random: RandomSource
) -> Mapping[int, str]:
    """Return a new bookie for as many failed slots as there are spare ones; none is in the ensemble yet."""
    spare = sorted(set(writable) - set(ensemble))
    slots = sorted(failed_slots)[: len(spare)]
    return dict(zip(slots, random.sample(spare, len(slots))))
