"""Ways to look for a planted defect, each a small campaign: what is found comes as an exception.

A hunt ends when it has found something, or when a defect of its kind would have been found long before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bkspark.errors import StorageDamaged
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import Violation
from tests.crash.campaign import STEPS, Campaign
from tests.crash.doubts import Damage, Doubts
from tests.crash.faults import Part, fail_every_call, flip_bytes
from tests.crash.full_disks import FullStarts
from tests.crash.parallel import rare_collections
from tests.crash.recoveries import Recoveries
from tests.crash.relaxed import RelaxedScript
from tests.crash.scripts import CollectingScript, CommittingScript, Script

IMAGES_MAX = 4000
"""What a mutant may survive before it counts as not noticed."""
_SHARE = 0.2
"""Share of the boundaries: many scripts find more than a few that are crashed everywhere."""
_RELAXED_SHARE = 0.15
_RECOVERIES_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect; `plant()` is a context in which the product has it. `hunt()` raises when it is noticed."""

    name: str
    bug: str
    plant: Callable[[], AbstractContextManager[Any]]
    hunt: Callable[[], None]

    @property
    def kind(self) -> tuple[object, ...]:
        """The hunt without its first seed: defects of one kind are looked for in the same way."""
        if not isinstance(self.hunt, partial):
            return (self.hunt,)
        chosen = (value for name, value in sorted(self.hunt.keywords.items()) if name != "first_seed")
        return (self.hunt.func, *(value for value in self.hunt.args if not isinstance(value, int)), *chosen)


def hunt_crashes(
    deep_every: int = 40,
    script: type[Script] = Script,
    storage_class: StorageClass | None = None,
    first_seed: int = 1,
) -> None:
    """Crash scripts of ascending seeds, many scripts at some boundaries rather than few at all.

    A defect that few scripts notice has a `first_seed` near one that does, here and below: it is found early, and a
    change of the product that moves it costs time only.
    """
    campaign = Campaign(
        lambda campaign: campaign.images >= IMAGES_MAX,
        deep_every,
        script=script,
        share=_SHARE,
        storage_class=storage_class,
    )
    seed = first_seed
    while campaign.images < IMAGES_MAX:
        campaign.run_script(seed)
        seed += 1


def hunt_answers(storage_class: StorageClass | None = None) -> None:
    """Run scripts of ascending seeds for what they and the audits of the living bookie find, without a crash image."""
    for seed in range(1, 101):
        Script(seed, STEPS, lambda script: None, storage_class).run()


def hunt_twice() -> None:
    """As `hunt_crashes`, with a second crash after most of the first ones."""
    hunt_crashes(deep_every=2)


def hunt_errors(first_seed: int = 1) -> None:
    """Fail calls of scripts of ascending seeds."""
    for seed in range(first_seed, first_seed + 8):
        fail_every_call(seed, Counter(), Part(0.2))


def hunt_flips(files: str = "") -> None:
    """Damage bytes that scripts of ascending seeds left in files whose names end so."""
    for seed in range(1, 5):
        flip_bytes(seed, Counter(), Part(0.02), clean=False, files=files)
        flip_bytes(seed, Counter(), Part(0.02), files=files)


def hunt_collections(first_seed: int = 1) -> None:
    """Crash scripts of ascending seeds that collect garbage all the time."""
    hunt_crashes(deep_every=10, script=CollectingScript, first_seed=first_seed)


def hunt_commit_errors() -> None:
    """Fail calls of scripts in which event loop and journal thread take turns to commit."""
    for seed in range(1, 9):
        fail_every_call(seed, Counter(), Part(0.2), kind=CommittingScript)


def hunt_deferrals(first_seed: int = 1) -> None:
    """Crash scripts of ascending seeds whose adds are mostly deferred."""
    campaign = Campaign(lambda campaign: campaign.images >= IMAGES_MAX, script=RelaxedScript, share=_RELAXED_SHARE)
    seed = first_seed
    while campaign.images < IMAGES_MAX:
        campaign.run_script(seed, 3 * STEPS)
        seed += 1


def hunt_recoveries(act: str, kind: str = StorageClass.SORTED.short_name) -> None:
    """Kill a rich script in the middle of `act`, and cut the power in the start that follows."""
    for seed in range(1, 4):
        Recoveries(_RECOVERIES_SHARE, act).run_script(seed, kind)


def hunt_doubts(first: Damage = Damage.CUT) -> None:
    """Lose index files, and collect garbage, rebuild and leave limbo around that; begin with one kind of damage."""
    for damage in (first, *(damage for damage in (Damage.CUT, Damage.REMOVED) if damage is not first)):
        Doubts().run(StorageClass.SORTED, damage, 1)


def hunt_full_starts() -> None:
    """Start with full ledger directories at some kills of a rich script."""
    for seed in range(1, 4):
        FullStarts(_RECOVERIES_SHARE).run_script(seed, StorageClass.SORTED.short_name)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what an error was raised from, and what that was raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
        yield error


def killed_by(mutant: Mutant) -> str | None:
    """Return the first sign of a mutant, None when it was not noticed.

    A sign is a promise that was broken, or a start that was refused. Whatever else is raised is an error of the
    harness, and raised: it says nothing about what the campaigns notice. A start that ends with a TypeError is one: the
    planted function does not take the arguments that the product gives.
    """
    with mutant.plant(), rare_collections():
        try:
            mutant.hunt()
        except (Violation, StorageDamaged) as error:
            for cause in causes(error):
                if isinstance(cause, TypeError):
                    raise cause from None
            return f"{type(error).__name__}: {error}"
    return None
