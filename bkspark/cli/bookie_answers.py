"""Answers of bookies' `/api/v2` in the form that commands and pages use, whatever a bookie sends.

It may have another version, or another program may answer. Each member that is used has the type that is expected: one
that is missing, or has another type, is empty, or None where a decision needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bkspark.ids import INT64_MAX

Form = Mapping[str, type]
"""The types of the members that are used: str, int, float, bool, list or dict."""

STATE: Form = {
    "id": str,
    "version": str,
    "pid": int,
    "started_ms": int,
    "phase": str,
    "reason": str,
    "set_by_operator": bool,
    "connections": int,
    "directories": list,
    "compaction_suspended": list,
    "collection_suspended": bool,
    "log_level": str,
}
"""The members of `/api/v2/bookie`."""
DIRECTORY: Form = {"directory": str, "kind": str, "used_percent": float}
"""The members of each of its directories."""
OPERATION: Form = {
    "kind": str,
    "subject": str,
    "who": str,
    "state": str,
    "error": str,
    "began_ms": int,
    "result": dict,
    "progress": list,
}
"""The members of each operation of `/api/v2/operations`."""
RECORD: Form = {"at_ms": int, "who": str, "change": str}
"""The members of each record of `/api/v2/audit`."""
PREVIEW: Form = {
    "ledgers": int,
    "fragments": int,
    "bytes": int,
    "growing": int,
    "without_spare": int,
    "targets": list,
    "unreadable": int,
}
"""The members of `/api/v2/cluster/bookies/{bookie_id}/drain`."""


def usable(found: object, form: Form) -> dict[str, Any]:
    """Return an object of this form, with the members of `found` that have it; members of other names are left out."""
    given = found if isinstance(found, dict) else {}
    return {name: given[name] if _has_type(given.get(name), kind) else kind() for name, kind in form.items()}


def rows(found: object, name: str, form: Form) -> list[dict[str, Any]]:
    """Return the objects in the array `name` of an answer; what is not an object is left out."""
    given = found.get(name) if isinstance(found, dict) else None
    return [usable(each, form) for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def known(found: object, form: Form) -> dict[str, Any]:
    """Return an object of this form; None for each member that `found` lacks, or that has another type."""
    given = found if isinstance(found, dict) else {}
    return {name: given[name] if _has_type(given.get(name), kind) else None for name, kind in form.items()}


def ids(found: object, name: str) -> list[int] | None:
    """Return the ids of ledgers in the array `name` of an answer; None: there is none, or something else is in it."""
    given = found.get(name) if isinstance(found, dict) else None
    is_right = isinstance(given, list) and all(_has_type(each, int) and each >= 0 for each in given)
    return given if is_right else None


def texts(found: object) -> dict[str, str]:
    """Return the members of an object as text; {}: it is not an object."""
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _has_type(value: object, kind: type) -> bool:
    if kind in (int, float):
        # A larger number does not fit a page, and is not a time.
        is_number = type(value) is int or (kind is float and type(value) is float)
        return is_number and -INT64_MAX <= value <= INT64_MAX  # type: ignore[operator]
    return type(value) is kind
