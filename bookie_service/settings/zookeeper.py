"""The keys of sessions at ZooKeeper: `zkTimeout`, `zkEnableSecurity`, and properties of ZooKeeper's Java client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bkspark.metadata.zookeeper_options import KEYS, ZooKeeperOptions, zookeeper_options
from bookie_service.settings.values import NULL, Values


def session_options(keys: Values) -> ZooKeeperOptions:
    """Return the options of all sessions of the process. Raises ConfigurationError."""
    parsed: dict[str, Any] = {}
    for name, key in KEYS.items():
        if key.is_flag:
            value = keys.flag(name, key.default == "true", key.meaning)
            if value is not (key.default == "true"):
                parsed[name] = value
            continue

        def parse(text: str, of: str = name) -> object:
            return None if text.lower() == NULL else KEYS[of].parse(text)

        if (found := keys.parsed(name, parse, default=key.default)) is not None:
            parsed[name] = found
    timeout_s = keys.number("zkTimeout", 10_000, least=500, most=3_600_000, unit="ms") / 1000
    return replace(zookeeper_options(parsed), timeout_s=timeout_s)
