"""Checks of HTTP requests against pages of other sites: the host name, and the origin of a request.

A page of another site can make the operator's browser send requests, from the operator's host and with the operator's
certificate, but without a bearer token or a cookie with SameSite=Strict. In such requests `Host` is the name that the
page's author chose, also if that name suddenly resolves to this host (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

_SAME = ("same-origin", "none")


def is_loopback(host: str) -> bool:
    """Return whether a name or address of a host means this host alone."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def is_known_host(host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` is an address, `localhost`, or one of these names, in lower case.

    Not 0.0.0.0 and ::, which lead to this host, too: for these, browsers do not say from which page a request comes, as
    they do for 127.0.0.1.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower().rstrip(".")
        if name == "localhost" or name in names:
            return True
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return not (getattr(address, "ipv4_mapped", None) or address).is_unspecified


def authority_of(target: str) -> str | None:
    """Return the host and port of a request target in absolute form, which replace `Host`; None: it is a path.

    "" if it is neither. A path may begin with two slashes.
    """
    if target.startswith("/"):
        return None
    try:
        return urlsplit(target).netloc
    except ValueError:
        return ""


def is_foreign_part(site: str | None, mode: str | None) -> bool:
    """Return whether a page of another site requests this as a part of itself: a picture, a frame, a fetch.

    site, mode: the headers Sec-Fetch-Site and Sec-Fetch-Mode. A link of another page may lead here.
    """
    return (site or "none") in ("cross-site", "same-site") and (mode or "navigate") != "navigate"


def is_foreign(site: str | None, origin: str | None, host: str | None) -> bool:
    """Return whether a request may come from a page of another site. Such a request must not change anything.

    site, origin, host: the headers Sec-Fetch-Site, Origin and Host.
    """
    if (site or "none") not in _SAME:
        return True
    try:
        return origin is not None and (not host or urlsplit(origin).netloc.lower() != host.lower())
    except ValueError:
        return True
