"""NodeMembers: decodes the JSON object of a log's node; each member is taken by name and checked. PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.ids import ENTRY_ID_MAX

VERSION = 1
"""The first version of every node."""

T = TypeVar("T")


class NodeMembers:
    """The members of a node's JSON object, taken one by one and checked; `end` checks that no member is left."""

    def __init__(self, data: bytes, path: str, what: str, *, version_max: int = VERSION) -> None:
        self._path = path
        self._what = what
        """What the node is, for messages."""
        self._taken = {"version"}
        """Names of the members that were taken; `end` refuses others."""
        try:
            members = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise self.error("it is not JSON") from None
        if not isinstance(members, dict) or "version" not in members:
            raise self.error("it is not a JSON object with a version")
        if type(members["version"]) is not int or not VERSION <= members["version"] <= version_max:
            raise self.error(
                f"it has version {members['version']!r}, this bkspark reads {version_max}: use a newer one"
            )
        self.version: int = members["version"]
        """The version of the node's form."""
        self.members = members

    def error(self, reason: str) -> MetadataFormat:
        return MetadataFormat(f"metadata node {self._path} is not a {self._what}: {reason}")

    def end(self) -> None:
        unknown = sorted(set(self.members) - self._taken)
        if unknown:
            raise self.error(f"unknown member {unknown[0]!r}")

    def value(self, key: str) -> Any:
        self._taken.add(key)
        if key not in self.members:
            raise self.error(f"{key} is missing")
        return self.members[key]

    def whole(self, key: str) -> int:
        return self.as_whole(key, self.value(key), 0)

    def flag(self, key: str) -> bool:
        value = self.value(key)
        if type(value) is not bool:
            raise self.error(f"{key} is neither true nor false")
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self.error(f"{key} is not text")
        return value

    def parsed(self, key: str, parse: Callable[[Any], T]) -> T | None:
        """Return `parse` of a member; None if the member is null."""
        value = self.value(key)
        try:
            return None if value is None else parse(value)
        except (ValueError, ConfigurationError) as error:
            raise self.error(str(error)) from None

    def items(self, key: str) -> list[Any]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self.error(f"{key} is not a list")
        return value

    def texts(self, key: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        values = self.items(key)
        for value in values:
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise self.error(f"{key} holds {str(value)[:100]!r}")
        return tuple(values)

    def whole_list(self, key: str, lowest: int = 0) -> list[int]:
        return [self.as_whole(key, value, lowest) for value in self.items(key)]

    def as_whole(self, key: str, value: Any, lowest: int) -> int:
        if type(value) is not int or not lowest <= value <= ENTRY_ID_MAX:
            raise self.error(f"{key} holds {str(value)[:100]!r} instead of a whole number")
        return value
