"""Access control lists of ZooKeeper's nodes. PURE.

An entry gives permissions to an identity, `scheme:id`, as ZooKeeper's own tools write it: `sasl:bookkeeper:cdrwa`.
Permissions are c and d (create and delete children), r (read), w (write the data) and a (set the list). Older versions
of ZooKeeper tell every client whether a node exists.

An identity is what a session has proved: `sasl:NAME`, `x509:SUBJECT`, `digest:NAME:HASH`. `world:anyone` is every
client. `auth:` in a new list means all identities of the session that writes it (Apache's CREATOR_ALL_ACL).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN
_LETTERS = {"c": CREATE, "d": DELETE, "r": READ, "w": WRITE, "a": ADMIN}
_EVERY_ONE = ("world", "anyone")
_UNPROVED = ("ip", "world")
"""Schemes that a session has without having proved anything."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One entry: what an identity may do."""

    scheme: str
    """How the identity is proved: "sasl", "digest", "x509", "world" and so on."""
    id: str
    """The identity, in the form of the scheme."""
    permissions: int
    """The sum of ZooKeeper's bits: read 1, write 2, create 4, delete 8, admin 16."""

    @classmethod
    def parse(cls, text: str) -> Acl:
        """Return an entry of `scheme:id:permissions`. Raises ValueError.

        >>> Acl.parse("sasl:reader:r")
        Acl(scheme='sasl', id='reader', permissions=1)
        """
        scheme, separator, rest = text.strip().partition(":")
        name, last, letters = rest.rpartition(":")
        if not (scheme and separator and last and letters) or set(letters) - set(_LETTERS):
            raise ValueError(
                f"{text.strip()!r:.80} is not scheme:id:permissions, as sasl:reader:r (permissions: cdrwa)"
            )
        if (scheme == "world") != (name == "anyone"):
            raise ValueError(f"{text.strip()!r:.80}: every client is world:anyone")
        return cls(scheme, name, sum(_LETTERS[letter] for letter in set(letters)))

    def __str__(self) -> str:
        letters = "".join(letter for letter, bit in _LETTERS.items() if self.permissions & bit)
        return f"{self.scheme}:{self.id}:{letters}"


AclList = tuple[Acl, ...]

CREATOR_ALL: AclList = (Acl("auth", "", ALL),)
"""All permissions for the identities of the session that writes the list, and none for others."""
OPEN: AclList = (Acl(*_EVERY_ONE, ALL),)


def parse_list(text: str) -> AclList:
    """Return the entries of a text, `;` between. Raises ValueError."""
    return tuple(Acl.parse(part) for part in text.split(";") if part.strip())


def shown(acls: Iterable[Acl]) -> str:
    """Return a list as ZooKeeper's tools show it."""
    return ", ".join(map(str, acls)) or "nothing"


def is_identity(scheme: str) -> bool:
    """Return whether a session must prove something to have an identity of this scheme."""
    return scheme not in _UNPROVED


def closed_list(identities: Iterable[tuple[str, str]], further: AclList) -> AclList:
    """Return the list that CREATOR_ALL becomes if a session with these identities writes it, plus further entries."""
    own = [Acl(scheme, name, ALL) for scheme, name in identities if is_identity(scheme)]
    return tuple(sorted({*own, *further}))


def is_same(one: Iterable[Acl], other: Iterable[Acl]) -> bool:
    """Return whether two lists have the same entries, in any order."""
    return set(one) == set(other)


def strangers(acls: Iterable[Acl], identities: Iterable[tuple[str, str]]) -> AclList:
    """Return the entries that let identities other than these change something."""
    own = set(identities)
    return tuple(acl for acl in acls if acl.permissions & ~READ and (acl.scheme, acl.id) not in own)
