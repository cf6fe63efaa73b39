"""The keys of one of several bookies that run on a host with one configuration: `--instances N`.

Instances are numbered from 1. Instance I differs from the others in these keys:

* `{instance}` in any value becomes I.
* Ports without it increase by I - 1: `bookiePort`, and if they are served, `httpServerPort` and
  `prometheusStatsHttpPort`.
* Directories without it get a folder for each instance: `/disk1/ledgers` becomes `/disk1/ledgers/instance-I`.

So `ledgerDirectories=/disk{instance}/ledgers` gives each instance a disk, and `/disk1,/disk2` gives each a share of
both disks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.ids import PORT_MAX
from bookie_service.settings.configuration import Configuration, configure

INSTANCES_MAX = 64
"""The maximum number of bookies under one supervisor."""

PLACEHOLDER = "{instance}"


@dataclass(frozen=True, slots=True)
class _Used:
    """What only one instance may use. `what`: the key, for messages."""

    what: str
    number: int
    """The instance that uses it."""


def instance_settings(values: Mapping[str, str], number: int, count: int) -> dict[str, str]:
    """Return the keys in which instance `number`, from 1 to `count`, differs from the configuration of all.

    Raises:
        ConfigurationError: a number or a key is not usable, or two instances would use the same port or directory.
    """
    if not 1 <= count <= INSTANCES_MAX:
        raise ConfigurationError(f"--instances {count} must lie between 1 and {INSTANCES_MAX}")
    if not 1 <= number <= count:
        raise ConfigurationError(f"--instance {number} must lie between 1 and {count}, the number of instances")
    if count > 1 and (bookie_id := values.get("bookieId", "").strip()) and PLACEHOLDER not in bookie_id:
        raise ConfigurationError(
            f"bookieId={bookie_id}: {count} instances cannot share an id: write {PLACEHOLDER} into it, or remove it"
        )
    found = {}
    used: dict[str, _Used] = {}
    for each in range(1, count + 1):
        replaced = {key: value.replace(PLACEHOLDER, str(each)) for key, value in values.items()}
        configuration = configure(replaced)
        ports = _ports(values, configuration, each)
        directories = _directories(values, configuration, each)
        for key, port in ports.items():
            _use(used, f"port {port}", _Used(key, each))
        for key, paths in directories.items():
            for path in paths:
                _use(used, f"directory {path}", _Used(key, each))
        if each == number:
            found = {key: value for key, value in replaced.items() if value != values[key]}
            found |= {key: str(port) for key, port in ports.items()}
            if "httpServerPort" in ports and configuration.http.port == configuration.http.metrics_port:
                # The metrics are served there, too.
                found["prometheusStatsHttpPort"] = found["httpServerPort"]
            found |= {key: ",".join(paths) for key, paths in directories.items()}
    return found


def _ports(values: Mapping[str, str], configuration: Configuration, number: int) -> dict[str, int]:
    """Return the ports of an instance that are not chosen at its start."""
    http = configuration.http
    served = {"bookiePort": configuration.address.port}
    served |= {"httpServerPort": http.port} if http.serves_api else {}
    served |= {"prometheusStatsHttpPort": http.metrics_port} if http.has_metrics_port else {}
    ports = {}
    for key, port in served.items():
        if port == 0:
            continue
        ports[key] = port if PLACEHOLDER in values.get(key, "") else port + number - 1
        if ports[key] > PORT_MAX:
            raise ConfigurationError(f"{key}={port}: instance {number} would use port {ports[key]}, above {PORT_MAX}")
    return ports


def _directories(values: Mapping[str, str], configuration: Configuration, number: int) -> dict[str, list[str]]:
    service = configuration.service
    found = {}
    for key, text, paths in (
        ("journalDirectories", values.get("journalDirectory", ""), service.journal_directories),
        ("ledgerDirectories", "", service.ledger_directories),
    ):
        is_placed = PLACEHOLDER in values.get(key, text)
        found[key] = [path if is_placed else f"{path}/instance-{number}" for path in paths]
    return found


def _use(used: dict[str, _Used], name: str, by: _Used) -> None:
    other = used.setdefault(name, by)
    # The journal and the ledgers of one bookie may share a directory.
    if other.number != by.number or (other.what != by.what and name.startswith("port")):
        raise ConfigurationError(
            f"{by.what} of instance {by.number} and {other.what} of instance {other.number} are the same {name}: "
            f"choose values that do not meet, or write {PLACEHOLDER} into one"
        )
