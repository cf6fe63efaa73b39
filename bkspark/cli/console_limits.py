"""Limits of the console for its clients, and the options of `bkspark console` that set them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.options import COUNT_MAX, YEARS_S, Bounds, bounded, bounds_of, check, default_of


@dataclass(frozen=True, slots=True)
class ConsoleLimits:
    """What clients of a console may use up: counts and seconds.

    connections: open connections. idle_s: time for the next request to begin, for a request's head to come, and for a
        peer to take a response. form_s: time for a form to come. tails: live tails that run together. handshakes,
        handshake_s: unfinished TLS handshakes, and time for one.
    """

    connections: int = bounded(256, 1, COUNT_MAX)
    idle_s: float = bounded(30.0, 0.001, YEARS_S, "seconds")
    form_s: float = bounded(15.0, 0.001, YEARS_S, "seconds")
    tails: int = bounded(20, 1, COUNT_MAX)
    handshakes: int = bounded(32, 1, COUNT_MAX)
    handshake_s: float = bounded(10.0, 0.001, YEARS_S, "seconds")

    def __post_init__(self) -> None:
        check(self)


_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
LIMIT_OPTIONS = {
    "connections": ("--max-connections", "open connections"),
    "idle_s": ("--idle-timeout", "time for the next request to begin, and for a response to be taken"),
    "form_s": ("--form-timeout", "time for a form to come"),
    "tails": ("--max-tails", "live tails that run together"),
    "handshakes": ("--max-tls-handshakes", "unfinished TLS handshakes"),
    "handshake_s": ("--tls-handshake-timeout", "time for a TLS handshake"),
}
"""By the field: the option, and what it limits."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add an option for each limit."""
    for field, (option, meaning) in LIMIT_OPTIONS.items():
        bounds = bounds_of(ConsoleLimits, field)
        assert bounds is not None, "each limit is a number"
        parser.add_argument(
            option,
            dest=field,
            type=_within(bounds),
            default=default_of(ConsoleLimits, field),
            metavar="N" if bounds.is_whole else "SECONDS",
            help=f"{meaning} (default: %(default)g)",
        )


def _within(bounds: Bounds) -> Callable[[str], float]:
    """Return an argparse type: a number within bounds."""
    kind = "whole number" if bounds.is_whole else "number of seconds"

    def number(text: str) -> float:
        if _NUMBER.fullmatch(text) and (not bounds.is_whole or text.isdigit()):
            value = int(text) if bounds.is_whole else float(text)
            if bounds.least <= value <= bounds.most:
                return value
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a {kind} from {bounds.least:.12g} to {bounds.most:.12g}"
        )

    return number


def limits_of(arguments: argparse.Namespace) -> ConsoleLimits:
    """Return the limits that the options set."""
    return ConsoleLimits(**{field: getattr(arguments, field) for field in LIMIT_OPTIONS})


def words_of(arguments: argparse.Namespace) -> list[str]:
    """Return the words of a command line that set the same limits."""
    return [word for field, (option, _) in LIMIT_OPTIONS.items() for word in (option, str(getattr(arguments, field)))]
