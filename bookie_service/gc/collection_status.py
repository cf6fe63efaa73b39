"""What garbage collection does and has done, for operators."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PassReport:
    """What one pass did."""

    dropped_ledgers: int = 0
    """Ledgers that were dropped from the index."""
    removed_logs: int = 0
    """Logs that were removed whole."""
    compacted_logs: int = 0
    """Logs that were rewritten."""
    damaged_logs: int = 0
    """Logs that were kept because they are damaged."""
    freed_bytes: int = 0
    """Bytes freed by removing and rewriting logs."""
    kept_because: str = ""
    """Why ledgers or logs that are garbage may remain; "": nothing prevented their deletion."""

    def __str__(self) -> str:
        kept = f"; {self.kept_because}" if self.kept_because else ""
        return (
            f"{self.dropped_ledgers} ledgers dropped, {self.removed_logs} entry logs removed, {self.compacted_logs} "
            f"rewritten, {self.damaged_logs} damaged and kept, {self.freed_bytes} bytes freed{kept}"
        )


@dataclass(slots=True)
class CollectionStatus:
    """What the collector does and has done since the start, and what an operator suspended.

    compacting: "minor" or "major" while logs are rewritten, otherwise "".
    minor_at_ms, major_at_ms: when such a compaction last ended, by the wall clock; 0: not since the start.
    deleted_bytes, compacted_bytes: bytes freed by removing whole logs, and by rewriting logs.
    logs, log_bytes, live_bytes, usage_counts: figures of the rotated logs from the last pass. `usage_counts[i]` is the
        number of logs whose live share is at most (i + 1) / 10.
    """

    is_forced: bool = False
    """Whether the pass that runs was asked for."""
    compacting: str = ""
    minor_at_ms: int = 0
    major_at_ms: int = 0
    minor_count: int = 0
    """Minor compactions that have ended. `major_count`: major ones."""
    major_count: int = 0
    passes: int = 0
    """Passes that have ended."""
    deleted_ledgers: int = 0
    """Ledgers that passes have dropped since the start."""
    deleted_bytes: int = 0
    compacted_bytes: int = 0
    logs: int = 0
    log_bytes: int = 0
    live_bytes: int = 0
    ledgers: int = 0
    """Ledgers that the bookie had after the last pass."""
    usage_counts: tuple[int, ...] = (0,) * 10
    last_report: PassReport = field(default_factory=PassReport)
    """What the last pass did."""
    is_suspended: bool = False
    """Whether an operator suspended all passes."""
    is_minor_suspended: bool = False
    """Whether an operator suspended minor compactions; `is_major_suspended`: major ones."""
    is_major_suspended: bool = False
