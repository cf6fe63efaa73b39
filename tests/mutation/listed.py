"""Mutants without an observable effect, and why: `equivalent.toml`.

An entry names a mutant by what stays when lines move: module, function, operator, the statement's first line, what is
changed and into what; `number` where a function has several that are alike. It is stale when the module has no such
mutant any more.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.operators import Mutant

FILE = Path(__file__).parent / "equivalent.toml"
_KEYS = ("module", "function", "operator", "statement", "before", "after")


@dataclass(frozen=True)
class Listed:
    """One entry of the list."""

    key: tuple[str, str, str, str, str, str, int]
    reason: str


def read_list(path: Path = FILE) -> list[Listed]:
    """Return the entries; each has a reason and is there once.

    Raises:
        ValueError: an entry lacks a key, has another one, or is there twice.
    """
    entries = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    found: list[Listed] = []
    for entry in entries:
        wrong = {*_KEYS, "reason"} - entry.keys() or entry.keys() - {*_KEYS, "reason", "number"}
        if wrong:
            raise ValueError(f"{path.name}: an entry of {entry.get('module')} lacks or must not have {sorted(wrong)}")
        if not entry["reason"].strip():
            raise ValueError(f"{path.name}: an entry of {entry['module']} gives no reason")
        found.append(Listed((*(entry[name] for name in _KEYS), entry.get("number", 0)), entry["reason"]))
    if len({entry.key for entry in found}) < len(found):
        raise ValueError(f"{path.name}: an entry is there twice")
    return found


def stale(entries: Iterable[Listed], mutants: Iterable[Mutant], modules: Iterable[str]) -> list[Listed]:
    """Return the entries of some modules that are no longer mutants of them."""
    keys, looked_at = {mutant.key for mutant in mutants}, set(modules)
    return [entry for entry in entries if entry.key[0] in looked_at and entry.key not in keys]


def as_entry(mutant: Mutant, reason: str = "") -> str:
    """Return the entry that lists a mutant, as TOML."""
    # A JSON string is a TOML basic string, but for characters that no source line has.
    lines = ["[[mutant]]", *(f"{name} = {json.dumps(value)}" for name, value in zip(_KEYS, mutant.key))]
    if mutant.number:
        lines.append(f"number = {mutant.number}")
    return "\n".join([*lines, f"reason = {json.dumps(reason)}", ""])
