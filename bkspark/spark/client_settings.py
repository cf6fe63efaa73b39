"""Settings of the BookKeeper client that options pass on: `bookkeeper.readTimeout=10`.

Names are those of Apache's client configuration where it has one. A time takes a unit (500ms, 10s, 1m, 1h, 1d) in any
case; without one it is in the unit of Apache's key.

    readTimeout                      seconds   how long a bookie may take to answer a read
    addEntryTimeout                  seconds   how long a bookie may take to answer an add
    clientConnectTimeoutMillis       ms        how long connecting to a bookie may take
    speculativeReadTimeout           ms        a read that takes longer is sent to the next replica, too
    explicitLacInterval              ms        how long readers wait for the last entry of a burst at most; 0: for ever
    localReads                       flag      false: bookies on this host are read over the network, too (our own)
    delayEnsembleChange              flag      a failed bookie is replaced only when too few are left
    minNumRacksPerWriteQuorum        number    racks that the bookies of an entry span, if the cluster has them
    bookieErrorThresholdPerInterval  number    failures within a minute after which a bookie gets no new entries
    bookieQuarantineTimeSeconds      seconds   how long such a bookie gets no new entries
    zkTimeout                        ms        how long ZooKeeper may take to answer, and a session to connect again
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ConfigurationError
from bkspark.ledger.bookies import PlacementOptions
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.net.pool import NetOptions
from bkspark.options import bounds_of
from bkspark.security.sasl import SaslClientOptions
from bkspark.spark.option_values import count, flag, shown
from bkspark.tls.options import TlsOptions

PREFIX = "bookkeeper."
_TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The options of the clients of Spark's driver and tasks. Hashable: it is part of a client's key."""

    net: NetOptions = field(default_factory=NetOptions)
    writer: WriterOptions = field(default_factory=WriterOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    zookeeper: ZooKeeperOptions = ZooKeeperOptions()
    """TLS and login of connections to the metadata store."""


def _seconds(unit: str) -> Callable[[str], float]:
    def seconds(text: str) -> float:
        match = _TIME.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"is not a time such as 500ms, 10s or 1m (without a unit: {unit})")
        return float(match[1]) * _UNITS_S[(match[2] or unit).lower()]

    return seconds


_SETTINGS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "readTimeout": ("net", "read_timeout_s", _seconds("s")),
    "addEntryTimeout": ("writer", "add_timeout_s", _seconds("s")),
    "clientConnectTimeoutMillis": ("net", "connect_timeout_s", _seconds("ms")),
    "speculativeReadTimeout": ("net", "speculative_read_s", _seconds("ms")),
    "explicitLacInterval": ("writer", "explicit_lac_interval_s", _seconds("ms")),
    "localReads": ("net", "local_reads", flag),
    "delayEnsembleChange": ("writer", "delay_ensemble_change", flag),
    "minNumRacksPerWriteQuorum": ("placement", "min_racks_per_write_quorum", count),
    "bookieErrorThresholdPerInterval": ("placement", "quarantine_failures", count),
    "bookieQuarantineTimeSeconds": ("placement", "quarantine_s", _seconds("s")),
    "zkTimeout": ("zookeeper", "timeout_s", _seconds("ms")),
}
_PARTS = {"net": NetOptions, "writer": WriterOptions, "placement": PlacementOptions, "zookeeper": ZooKeeperOptions}
SETTINGS = tuple(_SETTINGS)
_BY_KEY = {name.lower(): name for name in _SETTINGS}


def client_settings(
    given: Mapping[str, str],
    tls: TlsOptions | None = None,
    sasl: SaslClientOptions | None = None,
    zookeeper: ZooKeeperOptions | None = None,
) -> ClientSettings:
    """Return the client's settings from options: by name without the prefix, in any case.

    `tls`, `sasl`, `zookeeper`: already parsed, from their own options.

    Raises:
        ConfigurationError: a name is unknown, or a value is wrong or out of its bounds.
    """
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    for key, text in given.items():
        name = _BY_KEY.get(key.lower())
        if name is None:
            raise ConfigurationError(_unknown(key))
        part, member, check = _SETTINGS[name]
        try:
            value = check(text)
            _check_bounds(_PARTS[part], member, value)
        except ValueError as error:
            raise ConfigurationError(f"option '{PREFIX}{name}' is {shown(text)}, which {error}") from None
        parts[part][member] = value
    return ClientSettings(
        NetOptions(**parts["net"], tls=tls, sasl=sasl),
        WriterOptions(**parts["writer"]),
        PlacementOptions(**parts["placement"]),
        replace(zookeeper or ZooKeeperOptions(), **parts["zookeeper"]),
    )


def _check_bounds(options: type, member: str, value: Any) -> None:
    bounds = bounds_of(options, member)
    if bounds is not None and not bounds.least <= value <= bounds.most:
        unit = " seconds" if member.endswith("_s") else ""
        raise ValueError(f"is not from {bounds.least:g} to {bounds.most:g}{unit}")


def setting_meant(key: str) -> str | None:
    """Return the option of a setting that an unknown name means, without PREFIX or misspelt; None if there is none."""
    prefix, _, name = key.lower().rpartition(".")
    if prefix and not difflib.get_close_matches(prefix, [PREFIX.rstrip(".")], cutoff=0.8):
        return None
    near = difflib.get_close_matches(name, _BY_KEY, n=1, cutoff=0.8)
    return f"{PREFIX}{_BY_KEY[near[0]]}" if near else None


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _BY_KEY, n=1)
    if near:
        return f"unknown option '{PREFIX}{key}': did you mean '{PREFIX}{_BY_KEY[near[0]]}'?"
    return f"unknown option '{PREFIX}{key}': settings of the client are {', '.join(PREFIX + name for name in SETTINGS)}"
