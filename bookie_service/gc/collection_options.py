"""When and how fast garbage is collected."""

from __future__ import annotations

from dataclasses import dataclass, field

from bkspark.errors import ConfigurationError
from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check
from bookie_service.gc.gc_policy import CompactionLevel


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """When and how fast garbage is collected.

    deleted_share_max: if more than this share of the bookie's ledgers with entries is missing in the metadata, they are
        dropped only after many passes.
    metadata_ops_per_s: how many direct reads of ledgers' metadata a second.
    entries_per_s, bytes_per_s: how fast compaction copies; 0: no limit. `limit_by_bytes` says which of the two applies.
    outstanding_max: how many entries may be copied between two syncs of the new log.
    compact_when_full: logs are rewritten on full disks, too, and then at each pass.
    force_without_interval: a requested pass compacts even if the interval turns compaction off.
    """

    interval_s: float = bounded(600.0, 1e-9, YEARS_S, "seconds")
    """The pause between two passes."""
    overreplicated_interval_s: float = bounded(86_400.0, 0.0, YEARS_S, "seconds")
    """At least this long lies between passes that also look for ledgers which other bookies hold; 0: only requested
    ones do."""
    minor: CompactionLevel = field(default_factory=lambda: CompactionLevel(0.2, 3600.0))
    """Logs below this share of live bytes are rewritten often; `major`: logs below a higher share, seldom."""
    major: CompactionLevel = field(default_factory=lambda: CompactionLevel(0.8, 86_400.0))
    deleted_share_max: float = bounded(0.2, 0.0, 1.0)
    entries_per_s: int = bounded(1000, 0, COUNT_MAX)
    bytes_per_s: int = bounded(1_000_000, 0, BYTES_MAX, "bytes")
    limit_by_bytes: bool = False
    metadata_ops_per_s: int = bounded(1000, 1, COUNT_MAX)
    outstanding_max: int = bounded(100_000, 1, COUNT_MAX)
    compact_when_full: bool = False
    force_without_interval: bool = False

    def __post_init__(self) -> None:
        check(self)
        for name, level in (("minor", self.minor), ("major", self.major)):
            if level.threshold >= 1:
                raise ConfigurationError(
                    f"{name}CompactionThreshold {level.threshold:g} must be below 1; 0 turns it off"
                )
            if level.is_on and level.interval_s < self.interval_s:
                raise ConfigurationError(
                    f"{name}CompactionInterval {level.interval_s:g} s is shorter than gcWaitTime "
                    f"{round(self.interval_s * 1000)} ms, the interval at which it is checked"
                )
        if self.minor.is_on and self.major.is_on:
            if self.minor.threshold >= self.major.threshold:
                raise ConfigurationError(
                    f"minorCompactionThreshold {self.minor.threshold:g} must be below majorCompactionThreshold "
                    f"{self.major.threshold:g}"
                )
            if self.minor.interval_s >= self.major.interval_s:
                raise ConfigurationError(
                    f"minorCompactionInterval {self.minor.interval_s:g} must be below majorCompactionInterval "
                    f"{self.major.interval_s:g}"
                )
