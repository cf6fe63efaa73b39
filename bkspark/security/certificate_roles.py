"""Roles in the subject of a certificate, as Apache's `BookieAuthZFactory` reads them. PURE.

The first organizational unit (OU) of the subject, in the order of the certificate, holds them:

    OU = entry (";" entry)*       entry = code ":" value       code "0": the roles, with "," between them

so `0:writer,reader;1:test` has the roles writer and reader. A code has digits alone, without blanks; the last entry of
a code counts. Blanks around a role are not part of it. A relative name of several attributes counts as the attribute
whose type comes first in the alphabet, as Java sorts them.
"""

from __future__ import annotations

import re

from bkspark.security.principal import Subject, short_name

_ROLES = "0"
_ENTRY = re.compile("([0-9]+):(.*)")


def roles_of(subject: Subject) -> tuple[str, ...]:
    """Return the roles of a subject as `ssl` returns it; empty: there are none."""
    firsts = (min((_type(key), value) for key, value in part) for part in subject if part)
    unit = next((value for name, value in firsts if name == "OU"), "")
    codes = {match[1]: match[2] for entry in unit.split(";") if (match := _ENTRY.fullmatch(entry))}
    roles = codes.get(_ROLES, "").strip().rstrip(",")
    return tuple(role.strip() for role in roles.split(",")) if roles else ()


def _type(attribute: str) -> str:
    """Return the type of an attribute; "" for one that Java writes in digits."""
    name = short_name(attribute)
    return name if name.isupper() else ""
