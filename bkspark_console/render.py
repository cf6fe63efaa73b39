"""Templates, in which every value is escaped, and filters for numbers, bytes and times."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bkspark.cli.output import human_bytes
from bkspark.security.roles import Role
from bkspark.version import VERSION
from bkspark.wall_clock import wall_clock_ms
from bkspark_console.access import actions_of, role_of, who_of

_FOLDER = Path(__file__).parent
STATIC = _FOLDER / "static"
PAGES = (
    ("/", "Overview"),
    ("/bookies", "Bookies"),
    ("/ledgers", "Ledgers"),
    ("/logs", "Logs"),
    ("/repair", "Repair"),
    ("/slow", "Slow bookies"),
    ("/operations", "Operations"),
    ("/audit", "Audit"),
)


def size(value: float | None) -> str:
    """Return bytes with a unit; a dash: unknown."""
    return "–" if value is None or math.isnan(value) else human_bytes(int(value))


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with separators; a dash: unknown."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.{digits}f}"


def rate(value: float | None) -> str:
    """Return a rate or a duration with few digits."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def moment(value_ms: float | None) -> str:
    """Return ms since 1970 as a UTC time; a dash: unknown."""
    if not value_ms or math.isnan(value_ms) or not 0 < value_ms < 250_000_000_000_000:
        return "–"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """Return seconds in the largest unit that fits."""
    if seconds is None or math.isnan(seconds):
        return "–"
    if math.isinf(seconds):
        return "for ever"
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"


def age(value_ms: float | None) -> str:
    """Return how long ago a time was, ms since 1970."""
    return "–" if not value_ms else f"{duration(max(0.0, wall_clock_ms() - value_ms) / 1000)} ago"


def segment(value: object) -> str:
    """Return a text as one segment of a path."""
    return quote(str(value), safe="")


def query(values: dict[str, Any], **changes: Any) -> str:
    """Return a query string of those values that are not empty."""
    joined = {**values, **changes}
    return "?" + urlencode({name: value for name, value in joined.items() if value not in ("", None)})


def environment() -> Environment:
    """Return the environment of all templates. A name that a page does not provide is an error."""
    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_ in (size, number, rate, moment, duration, age, segment):
        made.filters[filter_.__name__] = filter_
    made.globals.update(query=query, pages=PAGES, version=VERSION, drawn=Markup)
    return made


TEMPLATES = web.AppKey("TEMPLATES", Environment)
CLUSTER_NAME = web.AppKey("CLUSTER_NAME", str)


DONE_S = 60.0
"""For this time after a change its page says that the change is done."""


def _said(request: web.Request) -> str:
    """Return the change that the user has just made. It is not taken from the URL, which any link could set."""
    if "done" not in request.query:
        return ""
    since_ms = wall_clock_ms() - DONE_S * 1000
    recent = reversed(actions_of(request).recent)
    found = next((each for each in recent if each.who == who_of(request) and each.outcome == "done"), None)
    return f"Done: {found.change}" if found is not None and found.at_ms > since_ms else ""


def render(request: web.Request, template: str, status: int = 200, **context: Any) -> web.Response:
    """Return a page."""
    text = (
        request.app[TEMPLATES]
        .get_template(template)
        .render(
            here=request.path,
            # A visitor who is not signed in, or uses another host name, learns nothing.
            cluster=request.app[CLUSTER_NAME] if request.get("is_known", False) else "",
            csrf=request.get("csrf", ""),
            may_sign_out=request.get("may_sign_out", False),
            user=who_of(request) if request.get("may_sign_out", False) else "",
            may_operate=role_of(request) >= Role.OPERATE,
            may_destroy=role_of(request) >= Role.DESTROY,
            said=_said(request),
            **context,
        )
    )
    # Texts of operators and bookies may contain half a surrogate pair, which UTF-8 cannot encode.
    body = text.encode("utf-8", "backslashreplace")
    return web.Response(body=body, status=status, content_type="text/html", charset="utf-8")
