"""Configuration keys that can be changed while the bookie runs. They are checked as at the start, and then applied."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bkspark.configuration_files import read
from bkspark.errors import ConfigurationError
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.operation.audit import audit
from bookie_service.operation.changes import Changes
from bookie_service.replication.options import RepairOptions
from bookie_service.settings.configuration import Configuration, configure, is_secret
from bookie_service.settings.table import TABLE

logger = logging.getLogger(__name__)

SIGHUP = "signal:SIGHUP"
"""The name in the audit log of what the signal changes."""
_AT_START_ONLY = ("gcWaitTime",)
_COMPACTION = ("Threshold", "Interval", "MaxTimeMillis")
LIVE_KEYS = frozenset(
    {
        *(row.key for row in (*TABLE[CollectionOptions], *TABLE[RepairOptions]) if row.key not in _AT_START_ONLY),
        *(f"{kind}Compaction{what}" for kind in ("minor", "major") for what in _COMPACTION),
        "compactionRate",
        "compactionRateByEntries",
        "logLevel",
    }
    - {"rereplicationInFlightMaxBytes"}
)
"""Keys that take effect at once: rates, thresholds and intervals of compaction and of repairs, and the log level."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of reading the configuration again: live keys that changed, and others, which need a restart."""

    changed: Mapping[str, tuple[str, str]]
    """The old and the new value of each."""
    need_restart: tuple[str, ...]
    """The names of the other keys that changed."""


class LiveKeys:
    """The configuration in force, and the parts that use it."""

    def __init__(
        self,
        configuration: Configuration,
        path: Path | None,
        settings: Mapping[str, str],
        changes: Changes,
    ) -> None:
        """`path`, `settings`: what the bookie was started with."""
        self._changes = changes
        self.configuration = configuration
        """The configuration in force. Replaced by each change."""
        self._path = path
        self._settings = settings
        self.parts: list[Callable[[Configuration], None]] = []
        """Functions that let a part use a changed configuration."""

    def set(self, changes: Mapping[str, str], who: str) -> dict[str, tuple[str, str]]:
        """Change live keys, all or none; return (old, new) of each key. They last until the bookie is restarted.

        Raises:
            ConfigurationError: a key is not live, or a value is not usable.
        """
        for key, value in changes.items():
            if "${" in value:
                # A message about its value would show what the variable holds: a password, for example.
                raise ConfigurationError(
                    f"{key}: a value that is set while the bookie runs cannot name a variable (${{...}}): write it out"
                )
            if key not in LIVE_KEYS:
                raise ConfigurationError(
                    f"{key} cannot be changed while the bookie runs; these can: {', '.join(sorted(LIVE_KEYS))}"
                )
        return self._change({**self.configuration.values, **changes}, who)

    def reload(self, who: str) -> Reloaded:
        """Read the file again, and use its live keys.

        Raises:
            ConfigurationError: the file cannot be read, or has an unusable value. Nothing is changed.
        """
        before = self.configuration.values
        values = {} if self._path is None else read(self._path, is_read_again=True)[0]
        values = {**values, **self._settings}
        differing = {key for key in {*before, *values} if before.get(key) != values.get(key)}
        configure(values)
        kept = {key: value for key, value in before.items() if key not in LIVE_KEYS}
        changed = self._change(kept | {key: values[key] for key in LIVE_KEYS & values.keys()}, who)
        need_restart = tuple(sorted(differing - LIVE_KEYS))
        if need_restart:
            logger.warning("configuration keys that changed take effect at the next start: %s", ", ".join(need_restart))
        return Reloaded(changed, need_restart)

    def reload_by_signal(self) -> None:
        """Do what SIGHUP asks for: read the file again, and log what came of it."""
        try:
            found = self.reload(SIGHUP)
            logger.info("SIGHUP: the configuration was read again, %d keys changed", len(found.changed))
        except ConfigurationError as error:
            logger.error("SIGHUP: the configuration is not read again, and nothing changes: %s", error)
        except Exception:
            # The caller must still report that the reload is over. Whether the process ends is decided by now.
            logger.exception("SIGHUP: the configuration is not read again: this is a defect")

    def notes(self, keys: Iterable[str]) -> list[str]:
        """Return a line for each of these keys whose value is not used as given."""
        starts = tuple(f"{key}=" for key in keys)
        return [note for note in self.configuration.notes if note.startswith(starts)]

    def _change(self, values: Mapping[str, str], who: str) -> dict[str, tuple[str, str]]:
        before = self.configuration
        after = configure(values)
        changed = {
            key: (before.values.get(key, ""), values.get(key, ""))
            for key in sorted(LIVE_KEYS)
            if before.values.get(key) != values.get(key)
        }
        with self._changes.half_done():
            for apply in self.parts:
                apply(after)
            self.configuration = after
            for key, (old, new) in changed.items():
                what = f"set {key}={new or 'its default'} (before: {old or 'its default'})"
                audit(who, what, key=key, old=old, new=new)
        for note in self.notes(changed):
            logger.warning("%s", note)
        return changed

    def shown(self) -> dict[str, str]:
        """Return all keys that are set, without secret values."""
        return {key: "***" if is_secret(key) else value for key, value in sorted(self.configuration.values.items())}
