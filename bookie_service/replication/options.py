"""Options of autorecovery, in seconds and bytes; the keys are Apache's (`configuration`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Replication workers.

    `bytes_per_s` 0 or less: no limit. `copies_in_flight_bytes`: bytes of entries that were read and that no new bookie
    has acknowledged yet, of all ledgers together. `password`: for ledgers whose metadata contain no password (format
    1).
    """

    ledgers_at_once: int = 4
    bytes_per_s: int = -1
    copies_in_flight_bytes: int = 16 * 1024 * 1024
    grace_s: float = 30.0
    pause_s: float = 5.0
    failed_pause_max_s: float = 300.0
    password: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The auditor. An interval of 0 or less: never. `verified_share`: share of a fragment's entries, besides its first
    and last one, 0 to 1."""

    lost_bookie_delay_s: float = 0.0
    bookie_check_interval_s: float = 86_400.0
    ledger_check_interval_s: float = 604_800.0
    verified_share: float = 0.0
    ledgers_at_once: int = 64


@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """All options of one autorecovery process."""

    audit: AuditOptions = AuditOptions()
    repair: RepairOptions = RepairOptions()
