"""Options of autorecovery, in seconds and bytes. Their keys are Apache's (`settings.configuration`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check
from bkspark.security.sasl import SaslClientOptions
from bkspark.tls.options import TlsOptions


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """Options of replication workers.

    `bytes_per_s` 0 or less: there is no limit. `copies_in_flight_bytes`: bytes of entries, of all ledgers together,
    that were read and that a new bookie has not acknowledged. `password`: for ledgers whose metadata contain no
    password (format 1).
    """

    ledgers_at_once: int = bounded(4, 1, COUNT_MAX)
    """Ledgers that one worker repairs at the same time."""
    bytes_per_s: int = bounded(-1, -1, BYTES_MAX, "bytes")
    copies_in_flight_bytes: int = bounded(16 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    grace_s: float = bounded(30.0, 0.0, YEARS_S, "seconds")
    """How long the writer of an open ledger has to replace a lost bookie itself, before the ledger is fenced."""
    pause_s: float = bounded(5.0, 0.001, YEARS_S, "seconds")
    """The longest pause between two looks at the list."""
    failed_pause_max_s: float = bounded(300.0, 0.001, YEARS_S, "seconds")
    """The longest pause before a repair that failed is tried again."""
    password: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of the auditor. An interval of 0 or less: never. `verified_share`: the share of a fragment's entries that
    is read, 0 to 1, without its first and its last entry."""

    lost_bookie_delay_s: float = bounded(0.0, 0.0, YEARS_S, "seconds")
    """How long a bookie must be missing before its ledgers are listed."""
    bookie_check_interval_s: float = bounded(86_400.0, -1.0, YEARS_S, "seconds")
    """The time between audits of all bookies if no bookie comes or goes."""
    ledger_check_interval_s: float = bounded(604_800.0, -1.0, YEARS_S, "seconds")
    """The time between checks that ask bookies for the entries of all ledgers."""
    verified_share: float = bounded(0.0, 0.0, 1.0)
    ledgers_at_once: int = bounded(64, 1, COUNT_MAX)
    """Ledgers whose metadata are read at the same time."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class AutoRecoveryOptions:
    """All options of one autorecovery process.

    tls, sasl: for its connections to bookies; None: no TLS, no authentication. zookeeper: for its session.
    """

    audit: AuditOptions = AuditOptions()
    repair: RepairOptions = RepairOptions()
    tls: TlsOptions | None = None
    sasl: SaslClientOptions | None = None
    zookeeper: ZooKeeperOptions = ZooKeeperOptions()

    def __post_init__(self) -> None:
        check(self)
