"""The rack map: which bookie is in which rack. JSON, as Apache Pulsar's brokers and tools store it:

    {"group": {"bookie id": {"rack": "/rack1", "hostname": "node1.example.com"}, ...}, ...}

It is the node `bookies` below the ledgers root; without that node, it is beside the root (`/bookies` for `/ledgers`),
where Pulsar has it. `rack` is a network location, one or more names with slashes (`/region/rack`); a leading slash may
be missing. `hostname` names the host, with or without a port. Groups are Pulsar's isolation groups and do not matter
here; if two groups name a bookie, the last one counts. Other fields are ignored; a bookie without a rack is in the
default one. Empty data is an empty map.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from bkspark.errors import MetadataFormat


@dataclass(frozen=True, slots=True)
class RackMap:
    """The rack and the host of each bookie for which the map has one."""

    racks: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)


def decode(data: bytes, path: str) -> RackMap:
    """Return the rack map. A host name that is not text is ignored: older tools wrote null.

    Raises:
        MetadataFormat: it is not a rack map; the message has `path`.
    """
    try:
        groups = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise MetadataFormat(f"the rack map at {path} is not JSON: {error}") from None
    found = RackMap()
    for group, bookies in _object(groups, "the map", path).items():
        for bookie, place in _object(bookies, f"group {group!r}", path).items():
            fields = _object(place, f"bookie {bookie!r}", path)
            rack, host = fields.get("rack"), fields.get("hostname")
            if rack is not None and not isinstance(rack, str):
                raise MetadataFormat(f"the rack map at {path} gives bookie {bookie!r} the rack {rack!r}, not text")
            if rack and rack.strip("/"):
                found.racks[bookie] = "/" + rack.strip("/")
            if isinstance(host, str) and host:
                found.hosts[bookie] = host.rpartition(":")[0] or host
    return found


def _object(value: object, what: str, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise MetadataFormat(f"the rack map at {path} is malformed: {what} must be an object, not {value!r:.60}")
    return value
