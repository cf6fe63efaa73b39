"""JSON as Apache's bookies print it: two spaces of indentation, ` : ` after names, arrays on one line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def dumps(value: object, indent: str = "") -> str:
    """Return a value as JSON in that form."""
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = f"{indent}  "
        members = (f"{inner}{json.dumps(str(name))} : {dumps(member, inner)}" for name, member in value.items())
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value:
            return "[ ]"
        return "[ " + ", ".join(dumps(member, indent) for member in value) + " ]"
    return json.dumps(value)
