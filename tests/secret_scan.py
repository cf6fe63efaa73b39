"""Finds secrets in files and texts: raw, hexadecimal, base64, lists of decimals, URL-encoded, and escaped.

A tool of tests: it reads every file below some folders, and the arguments of processes. Files that hold secrets by
purpose are left out by name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote_to_bytes

SECRET_BYTES_MIN = 12
"""Shorter ones would be found by chance."""
CHUNK_BYTES = 8 << 20
OVERLAP_BYTES = 4096
"""Chunks of a file overlap by more than the longest form of a secret."""


@dataclass(frozen=True)
class Finding:
    """A secret in a place. Its text names neither the secret's value nor what surrounds it."""

    place: str
    secret: str
    form: str


def forms(secret: bytes) -> dict[str, tuple[bytes | re.Pattern[bytes], ...]]:
    """Return what each form of a secret looks like, in bytes as they are."""
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret of {len(secret)} bytes would be found by chance: at least {SECRET_BYTES_MIN}")
    # ab12, AB12, ab:12, 0xab, 0x12 and the like.
    hexadecimal = rb"[\s:,]{0,2}(?:0x)?".join(b"%02x" % octet for octet in secret)
    # [115, 51], 115 51, and Java's bytes, which are signed.
    decimal = rb"[\s,;]+".join(_decimal(octet) for octet in secret)
    return {
        "raw": (secret,),
        "UTF-16": (b"\0".join(bytes([octet]) for octet in secret),),
        "hex": (re.compile(hexadecimal, re.IGNORECASE),),
        "base64": tuple(_base64(secret)),
        "decimal": (re.compile(decimal),),
    }


def _base64(secret: bytes) -> set[bytes]:
    """Return the part of the secret's base64 that no neighbour changes, for each place in a group of three bytes."""
    found = set()
    for before in range(3):
        first = -(-before * 8 // 6)  # characters that hold bits of what is before it
        end = (before + len(secret)) * 8 // 6  # those after it hold bits of what follows
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(bytes(before) + secret)[first:end])
    return found


def _decimal(octet: int) -> bytes:
    return b"%d" % octet if octet < 128 else b"(?:%d|-%d)" % (octet, 256 - octet)


def readings(data: bytes) -> dict[str, list[bytes]]:
    """Return data with what encodes single bytes replaced by them, by form: each is searched for the raw secret."""
    found: dict[str, list[bytes]] = {"URL": [], "escaped": []}
    if b"%" in data:
        found["URL"] = [unquote_to_bytes(data), unquote_to_bytes(data.replace(b"+", b" "))]
    for encode in (_octet, _character):
        unescaped = partial(_unescaped, encode=encode)
        # Python, JSON and Java's properties; HTML; and JSON in HTML.
        text = _ENTITY.sub(unescaped, data) if b"&" in data else data
        found["escaped"] += [_BACKSLASH.sub(unescaped, each) for each in (data, text) if b"\\" in each]
        found["escaped"] += [text] if text is not data else []
    return found


_NUMBERS = re.compile(rb"(?:\d{1,3}[\s,;]+-?){%d}\d" % (SECRET_BYTES_MIN - 1))
"""As many numbers of bytes as the shortest secret has."""
_BACKSLASH = re.compile(rb"\\x(?P<octet>[0-9a-fA-F]{2})|\\u(?P<hex>[0-9a-fA-F]{4})|\\(?P<other>.)")
_ENTITY = re.compile(rb"&#x(?P<hex>[0-9a-fA-F]{1,6});|&#(?P<decimal>[0-9]{1,7});|&(?P<entity>[a-z]{2,4});")
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_CONTROLS = dict(zip((b"b", b"t", b"n", b"f", b"r"), (b"\b", b"\t", b"\n", b"\f", b"\r"), strict=True))


def _unescaped(match: re.Match[bytes], encode: Callable[[int], bytes]) -> bytes:
    kind = match.lastgroup
    assert kind is not None
    text = match[kind]
    if kind == "octet":
        return bytes([int(text, 16)])
    if kind == "entity":
        return _ENTITIES.get(text, match[0])
    if kind == "other":
        return _CONTROLS.get(text, text)
    number = int(text, 16 if kind == "hex" else 10)
    return encode(number) if number < 0x110000 else match[0]


def _octet(number: int) -> bytes:
    return bytes([number]) if number < 256 else b"?"


def _character(number: int) -> bytes:
    return chr(number).encode(errors="replace")


class SecretScanner:
    """Looks for some secrets, by name."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._secrets = dict(secrets)
        self._forms = [
            (name, form, part)
            for name, secret in secrets.items()
            for form, parts in forms(secret).items()
            for part in parts
        ]

    def in_bytes(self, data: bytes, place: str) -> Iterator[Finding]:
        """Yield the forms of secrets that occur."""
        digits = data.translate(None, b" \t\n\r\f\v:,").lower().replace(b"0x", b"")
        has_numbers = _NUMBERS.search(data) is not None
        for name, form, part in self._forms:
            if isinstance(part, bytes):
                is_there = part in data
            else:
                # Each search by such a pattern takes a hundred times as long as a search for bytes.
                is_likely = has_numbers if form == "decimal" else self._secrets[name].hex().encode() in digits
                is_there = is_likely and part.search(data) is not None
            if is_there:
                yield Finding(place, name, form)
        for form, texts in readings(data).items():
            for name, secret in self._secrets.items():
                if any(secret in text for text in texts):
                    yield Finding(place, name, form)

    def in_file(self, path: Path) -> Iterator[Finding]:
        with path.open("rb") as file:
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                data = rest + chunk
                yield from self.in_bytes(data, str(path))
                rest = data[-OVERLAP_BYTES:]

    def below(self, folders: Iterable[Path], without: Iterable[Path] = ()) -> Iterator[Finding]:
        """Yield what is in files below some folders, and in their names; not in and below `without`."""
        left_out = [path.resolve() for path in without]
        for folder in folders:
            for path in sorted(folder.rglob("*")):
                resolved = path.resolve()
                if path.is_symlink() or any(resolved.is_relative_to(each) for each in left_out):
                    continue
                yield from self.in_bytes(path.name.encode(), f"the name of {path}")
                if path.is_file():
                    yield from self.in_file(path)


def process_arguments(*, session: int) -> dict[int, bytes]:
    """Return the arguments of the processes of a session, by process id: what `ps` shows to every user."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # pid (name) state ppid pgrp session: the name may have blanks.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found[int(folder.name)] = (folder / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue  # it has ended
    return found
