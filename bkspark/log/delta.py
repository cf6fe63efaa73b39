"""A log's delta: how routed commits changed its head since the head itself was written. PURE.

    /bkspark/logs/<name>/delta    exists once the log was in a routed commit; the head says so (`routed`)

A routed commit changes many logs in one transaction (routing.py), which ZooKeeper limits to 1 MiB. Heads are too large
for that, so it writes only what changes, into this small node.

The text is JSON like that of a head: `{"base":17,"changed":{...},"version":1}`. `base` is the version of the head's
node to which the changes apply. They count while the head has that version; every change of the head includes them, so
once it has a higher version they are part of it, and no process has to clean up after another.

`changed` has the members of the head that differ, in one of three forms: `{"set":value}`; for a list
`{"add":[...],"drop":[...]}`, the indexes of the items to drop, and then the items to add at its end; for an object
`{"members":{...}}`, its own members that differ, in the same forms.

    {"base":17,"changed":{"last_epochs":{"add":[["q1",8]],"drop":[0]},"tail":{"add":[[12,99,1024]],"drop":[]}},
    "version":1}

A reader needs both nodes. If the delta's base is above the version of the head that it read, it reads the head again.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from bkspark.errors import MetadataFormat
from bkspark.log.formats import HEADS_CACHED_MAX, LogHead, decode_head, encode_head, log_path

DELTA = "delta"
DELTA_BYTES_MAX = 700
"""Above this, the changes are written into the head before a routed commit adds more."""
_VERSION = 1


def delta_path(name: str) -> str:
    """Return the path of a log's delta."""
    return f"{log_path(name)}/{DELTA}"


def encode_delta(base: int, stored: LogHead, wanted: LogHead) -> bytes:
    """Return the delta's node: the difference from the head `stored`, which has version `base`, to `wanted`."""
    before, after = json.loads(encode_head(stored)), json.loads(encode_head(wanted))
    assert not before.keys() - after.keys(), "no routed commit removes a member"
    changed = {key: difference(before.get(key), value) for key, value in after.items() if before.get(key) != value}
    text = json.dumps({"base": base, "changed": changed, "version": _VERSION}, sort_keys=True, separators=(",", ":"))
    return text.encode("ascii")


def difference(before: Any, after: Any) -> dict[str, Any]:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return {"members": {key: difference(before[key], each) for key, each in after.items() if before[key] != each}}
    if not isinstance(before, list) or not isinstance(after, list):
        return {"set": after}
    drop, kept = [], 0
    for index, item in enumerate(before):
        if kept < len(after) and item == after[kept]:
            kept += 1
        else:
            drop.append(index)
    return {"add": after[kept:], "drop": drop} if kept else {"set": after}


@lru_cache(maxsize=HEADS_CACHED_MAX)
def decode_base(data: bytes, path: str) -> int:
    """Return the version of the head to which a delta applies. Raises MetadataFormat, which names `path`."""
    base: int = _members(data, path)["base"]
    return base


@lru_cache(maxsize=HEADS_CACHED_MAX)
def decode_changed(head: bytes, data: bytes, name: str) -> LogHead:
    """Return the head of a log with its delta. Raises MetadataFormat, which names the node."""
    members, changed = json.loads(head), _members(data, delta_path(name))["changed"]
    try:
        for key, change in changed.items():
            members[key] = applied(members.get(key, []), change)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise _error(delta_path(name), "its changes are not those of a head") from None
    return decode_head(json.dumps(members).encode("ascii"), f"{log_path(name)} with its {DELTA}")


def applied(before: Any, change: dict[str, Any]) -> Any:
    if "set" in change:
        return change["set"]
    if "members" in change:
        return {**before, **{key: applied(before[key], each) for key, each in change["members"].items()}}
    drop = set(change["drop"])
    if not drop <= set(range(len(before))):
        raise ValueError
    return [item for index, item in enumerate(before) if index not in drop] + change["add"]


def _members(data: bytes, path: str) -> dict[str, Any]:
    try:
        members = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _error(path, "it is not JSON") from None
    if not isinstance(members, dict) or members.get("version") != _VERSION:
        raise _error(path, f"it is not a JSON object of version {_VERSION}: use a newer bkspark")
    if sorted(members) != ["base", "changed", "version"] or not isinstance(members["changed"], dict):
        raise _error(path, f"its members are {sorted(members)}")
    if type(members["base"]) is not int or members["base"] < 0:
        raise _error(path, "its base is not a version of a node")
    return members


def _error(path: str, reason: str) -> MetadataFormat:
    return MetadataFormat(f"metadata node {path} is not a delta of a log: {reason}")
