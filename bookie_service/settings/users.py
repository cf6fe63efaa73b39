"""Users and groups of this host: the user that runs the bookie, and those that configuration keys give by name or
number.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable

_DIGITS_MAX = 20
_NUMBER_MAX = (1 << 32) - 2
"""The highest number of a group. The next one means none."""


def current_user() -> str:
    """Return the name of the user that this process runs as, or its number if it has no name."""
    return user_name(os.geteuid())


def user_name(user_id: int) -> str:
    """Return the name of a user, or the number of a user without a name."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def user_ids(names: Iterable[str]) -> frozenset[int]:
    """Return the numbers of users. Raises ValueError if this host has no user of a name."""
    try:
        return frozenset(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid for name in names)
    except (KeyError, OverflowError) as error:
        raise ValueError(f"this host has no such user: {error}") from None


def group_id(name: str) -> int:
    """Return the number of a group. Raises ValueError if this host has no group of this name or number."""
    try:
        number = int(name) if name.isdecimal() and len(name) < _DIGITS_MAX else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError("this host has no such group") from None
    if number > _NUMBER_MAX:
        raise ValueError(f"the number of a group is at most {_NUMBER_MAX}")
    return number
