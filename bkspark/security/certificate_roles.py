"""Roles in the subject of a certificate, as Apache's `BookieAuthZFactory` reads them. PURE.

The first organizational unit (OU) of the subject, in the order of the certificate, holds them:

    OU = entry (";" entry)*       entry = code ":" value       code "0": the roles, with "," between them

so `0:writer,reader;1:test` has the roles writer and reader. Blanks around a part are not part of it.
"""

from __future__ import annotations

from bkspark.security.principal import Subject

_ROLES = "0"


def roles_of(subject: Subject) -> tuple[str, ...]:
    """Return the roles of a subject as `ssl` returns it; empty if it has no roles."""
    units = (value for part in subject for key, value in part if key in ("organizationalUnitName", "OU"))
    for entry in next(units, "").split(";"):
        code, mark, value = entry.partition(":")
        if mark and code.strip() == _ROLES:
            return tuple(role.strip() for role in value.split(",") if role.strip())
    return ()
