"""Options of autorecovery, in seconds and bytes; the keys are Apache's (`configuration`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check
from bkspark.security.sasl import SaslClientOptions
from bkspark.tls.options import TlsOptions


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Replication workers.

    `bytes_per_s` 0 or less: no limit. `copies_in_flight_bytes`: bytes of entries that were read and that no new bookie
    has acknowledged yet, of all ledgers together. `password`: for ledgers whose metadata contain no password (format
    1).
    """

    ledgers_at_once: int = bounded(4, 1, COUNT_MAX)
    bytes_per_s: int = bounded(-1, -1, BYTES_MAX, "bytes")
    copies_in_flight_bytes: int = bounded(16 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    grace_s: float = bounded(30.0, 0.0, YEARS_S, "seconds")
    pause_s: float = bounded(5.0, 0.001, YEARS_S, "seconds")
    failed_pause_max_s: float = bounded(300.0, 0.001, YEARS_S, "seconds")
    password: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The auditor. An interval of 0 or less: never. `verified_share`: share of a fragment's entries, without its first
    and last one, 0 to 1."""

    lost_bookie_delay_s: float = bounded(0.0, 0.0, YEARS_S, "seconds")
    bookie_check_interval_s: float = bounded(86_400.0, -1.0, YEARS_S, "seconds")
    ledger_check_interval_s: float = bounded(604_800.0, -1.0, YEARS_S, "seconds")
    verified_share: float = bounded(0.0, 0.0, 1.0)
    ledgers_at_once: int = bounded(64, 1, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """All options of one autorecovery process.

    tls, sasl: of its connections to bookies; None: they are in clear, or not authenticated. zookeeper: of its session.
    """

    audit: AuditOptions = AuditOptions()
    repair: RepairOptions = RepairOptions()
    tls: TlsOptions | None = None
    sasl: SaslClientOptions | None = None
    zookeeper: ZooKeeperOptions = ZooKeeperOptions()

    def __post_init__(self) -> None:
        check(self)
