"""Chooses the bookies that take the copies of repairs, so that each gets about its share. Pure.

Drawn at random, one of a hundred bookies gets two or three times its share of a few hundred copies, and the repair
waits for its disk. So several choices are drawn, which all keep to hosts and racks, and the one is taken whose bookies
have received the fewest copies from this process. Processes know nothing of each other. Five of them stay below twice
the share of 500 copies on a hundred bookies; a process in each bookie makes only a few copies, so chance decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from bkspark.core.placement import RandomSource, Topology, choose_replacements

DRAWS = 4
"""Choices that are compared. One takes 1 to 4 ms if there are a hundred bookies or more."""


class RepairTargets:
    """The choices of one process, and how many copies each bookie has received from it."""

    def __init__(self, random: RandomSource) -> None:
        self._random = random
        self._received: Counter[str] = Counter()
        """Copies by bookie, halved with each pass. Changed by `choose` and `begin_pass`."""

    def choose(
        self,
        bookies: Sequence[str],
        slots: Sequence[int],
        spare: Collection[str],
        write_quorum: int,
        topology: Topology,
    ) -> Mapping[int, str]:
        """Return new bookies for slots of an ensemble, as `choose_replacements` does, and count their copies."""
        draws = [choose_replacements(bookies, slots, spare, write_quorum, self._random, topology) for _ in range(DRAWS)]
        chosen = min(draws, key=self._load)
        self._received.update(chosen.values())
        return chosen

    def begin_pass(self) -> None:
        """Count earlier copies half: the list is read again. Otherwise a bookie that is new would get most copies until
        it had as many as the others got in all the time before."""
        self._received = Counter({bookie: count // 2 for bookie, count in self._received.items() if count > 1})

    def _load(self, draw: Mapping[int, str]) -> tuple[int, list[int]]:
        """Return the order of a choice: slots that stay empty first, then the copies of the fullest bookies."""
        return -len(draw), sorted((self._received[bookie] for bookie in draw.values()), reverse=True)
