"""JSON as Apache's bookies print it: two spaces of indentation, ` : ` after names, arrays on one line. Pure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence


def dumps(value: object, indent: str = "") -> str:
    """Return a value as JSON in this form."""
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


async def stream(groups: AsyncIterator[Mapping[int, object] | Mapping[str, object]]) -> AsyncIterator[bytes]:
    """Yield the text of one object whose members come in groups: what `dumps` would return for all members."""
    before = "{\n"
    async for group in groups:
        if group:
            yield (before + dumps(group)[2:-2]).encode()
            before = ",\n"
    yield b"{ }" if before == "{\n" else b"\n}"
