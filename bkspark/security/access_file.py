"""AccessFile: the tokens and client certificates of HTTP with their roles. The file is read again when it changes.

One line for each, `#` begins a comment:

    token        ROLE  NAME  sha256:HEX
    token        ROLE  NAME  THE-TOKEN-ITSELF
    certificate  ROLE  SUBJECT

`HEX` is the SHA-256 of a token, 64 digits. A plain hash is enough for a random token; do not use passwords as tokens. A
token has at least `TOKEN_MIN` characters. `SUBJECT` is the subject of a certificate as RFC 4514 writes it:
`CN=ops,O=Example`. A file whose only line is one word of letters, digits and `-._~+/=`, or `sha256:HEX`, is one token
with the role `destroy` and the name `token`. Any other line is a misspelt rule, or an error message of the program that
wrote the file, and must not become a token. One word that replaces lines while the file is in use is refused, because
it may be such a message, too.

Only hashes of tokens stay in memory. A given token is compared with all of them in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bkspark.changed_files import ChangedFiles, Says
from bkspark.errors import ConfigurationError
from bkspark.secret_files import shown_name
from bkspark.security.principal import Principal
from bkspark.security.roles import Role

logger = logging.getLogger(__name__)

TOKEN_MIN = 16
FILE_BYTES_MAX = 1024 * 1024
REFRESH_S = 1.0
"""A request finds a changed file at the latest this long after the change."""
_HASHED = "sha256:"
_HEX = re.compile("[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@:/-]{1,100}")
_ONE_TOKEN = "token"
_ONE_WORD = re.compile(rf"(?:{_HASHED})?[A-Za-z0-9._~+/-]+=*")
"""What HTTP allows as a bearer token (RFC 6750, section 2.1), or its hash."""


@dataclass(frozen=True, slots=True)
class _Token:
    name: str
    role: Role
    digest: bytes = field(repr=False)
    """The hash of the token; the file does not have the token itself."""


@dataclass(frozen=True, slots=True)
class _Rules:
    tokens: tuple[_Token, ...]
    certificates: Mapping[str, Role]
    """The role of each name in a client's certificate."""


class AccessFile:
    """The tokens and certificates of one file. For one thread."""

    def __init__(self, path: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file. `key`: the key or option that names it.

        Raises:
            ConfigurationError: it cannot be used; the message has file and line, and never a token.
        """
        self._path = path
        self._key = key
        self._had_lines = False
        """Whether the rules in force are lines, and not a token alone. Changed by `_read`."""
        says = Says("tokens and roles stay as they were", f"tokens and roles were read again from {path}")
        self._rules = ChangedFiles([path], self._read, REFRESH_S, says, logger, clock)

    def of_token(self, token: str) -> tuple[Principal, Role] | None:
        """Return the principal that has a token; None if no principal has it.

        The time that this takes does not depend on how much of the token is right.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for each in self._rules.current().tokens:
            if hmac.compare_digest(each.digest, digest):
                found = each
        return None if found is None else (Principal(found.name, "token"), found.role)

    def role_of(self, principal: Principal) -> Role:
        """Return the role of a principal that was identified before; `Role.NONE` if the file does not name it."""
        rules = self._rules.current()
        if principal.kind == "certificate":
            return rules.certificates.get(principal.name, Role.NONE)
        if principal.kind == "token":
            return next((each.role for each in rules.tokens if each.name == principal.name), Role.NONE)
        return Role.NONE

    def mark(self, principal: Principal) -> str:
        """Return a text that changes when the principal of that name gets another token; it does not disclose the
        token."""
        for each in self._rules.current().tokens:
            if principal.kind == "token" and each.name == principal.name:
                return hashlib.sha256(b"mark " + each.digest).hexdigest()
        return ""

    def _read(self) -> _Rules:
        try:
            with Path(self._path).open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(FILE_BYTES_MAX + 1).decode("utf-8")
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
            if _may_be_a_token(self._path):
                raise ConfigurationError(
                    f"{self._key}={shown_name(self._path)}: the file cannot be read: {why}. Name a file. The rest of "
                    "the value may be a token, so it is not shown"
                ) from None
            raise self._wrong(f"the file cannot be read: {why}") from None
        if len(text) > FILE_BYTES_MAX:
            raise self._wrong(f"the file has more than {FILE_BYTES_MAX} bytes")
        if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
            raise self._wrong("every user of this host can change the file: chmod o-w")
        try:
            rules, has_plain = parsed(text)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        has_lines = _one_word(text) is None
        if self._had_lines and not has_lines:
            raise self._wrong(
                "it has one word in place of its lines, which may be an error message: if it is a token, start again"
            )
        self._had_lines = has_lines
        if has_plain and stat.S_ISREG(mode) and mode & stat.S_IROTH:
            logger.warning("every user of this host can read %s, which holds a token: chmod o-r", self._path)
        return rules

    def _wrong(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self._key}={self._path}: {why}")


def _lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are neither empty nor comments, with their numbers."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _one_word(text: str) -> str | None:
    """Return the token that a file is, None if it has lines of users."""
    lines = _lines(text)
    return lines[0][1] if len(lines) == 1 and _ONE_WORD.fullmatch(lines[0][1]) else None


def parsed(text: str) -> tuple[_Rules, bool]:
    """Return the rules of a file, and whether it has a token in clear. Raises ValueError, with the line's number."""
    lines, word = _lines(text), _one_word(text)
    if word is not None:
        digest, is_plain = _digest(word)
        return _Rules((_Token(_ONE_TOKEN, Role.DESTROY, digest),), {}), is_plain
    tokens: dict[str, _Token] = {}
    digests: set[bytes] = set()
    certificates: dict[str, Role] = {}
    has_plain = False
    for number, line in lines:
        try:
            kind, role, rest = line.split(maxsplit=2)
        except ValueError:
            raise ValueError(
                f"line {number} must be: token ROLE NAME TOKEN, or: certificate ROLE SUBJECT; a token alone has only "
                "letters, digits and -._~+/="
            ) from None
        try:
            if kind == "certificate":
                if rest in certificates:
                    raise ValueError("the subject has a line already")
                certificates[rest] = Role.parse(role)
                continue
            if kind != "token":
                raise ValueError("it must begin with token or certificate")
            name, secret, *_ = *rest.split(maxsplit=1), ""
            if not _NAME.fullmatch(name):
                raise ValueError("the name must be of letters, digits and ._@:/-")
            digest, is_plain = _digest(secret)
            if name in tokens or digest in digests:
                raise ValueError("the name or the token has a line already")
            tokens[name] = _Token(name, Role.parse(role), digest)
            digests.add(digest)
            has_plain |= is_plain
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not tokens and not certificates:
        raise ValueError(f"it must name a token of at least {TOKEN_MIN} characters, or a certificate")
    return _Rules(tuple(tokens.values()), certificates), has_plain


def _digest(secret: str) -> tuple[bytes, bool]:
    """Return the hash of a token, and whether the file has the token in clear."""
    if secret.startswith(_HASHED):
        digits = secret.removeprefix(_HASHED).lower()
        if not _HEX.fullmatch(digits):
            raise ValueError(f"{_HASHED} must be followed by 64 hexadecimal digits")
        return bytes.fromhex(digits), False
    check_token(secret)
    return hashlib.sha256(secret.encode()).digest(), True


def _may_be_a_token(path: str) -> bool:
    """Return whether no file has this name, so that it may be a token by mistake."""
    return len(path) >= TOKEN_MIN and not os.path.exists(path)


def check_token(token: str) -> None:
    """Raise ValueError unless a text can be a token."""
    # Programs send other characters in a header as bytes of different encodings.
    if len(token) < TOKEN_MIN or not (token.isascii() and token.isprintable()):
        raise ValueError(f"a token must have at least {TOKEN_MIN} printable ASCII characters")


def read_token(path: str | Path, key: str) -> str:
    """Return the token in a file, for a client. `key`: the option that names the file.

    Raises:
        ConfigurationError: the file cannot be read, or is not one token.
    """
    try:
        token = Path(path).read_text().strip()
        check_token(token)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else why
        shown = shown_name(str(path)) if _may_be_a_token(str(path)) else path
        raise ConfigurationError(f"{key}={shown}: the file must hold a token alone: {why}") from None
    return token
