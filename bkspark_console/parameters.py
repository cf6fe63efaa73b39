"""Checks values of requests. Each error names the value and says what would be right."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bkspark.ids import LEDGER_ID_MAX, LOG_NAME_RULE, check_bookie_id, is_log_name

TEXT_MAX = 200
_SHOWN_MAX = 40


class BadParameter(Exception):
    """A value of a request is wrong."""


def whole_number(values: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    """Return a whole number; the default if it is missing or empty. Raises BadParameter."""
    text = values.get(name, "").strip()
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and minimum <= int(text) <= maximum):
        raise BadParameter(f"{name} is {text[:_SHOWN_MAX]!r}, not a whole number of {minimum} to {maximum}")
    return int(text)


def ledger_id(text: str) -> int:
    """Return the id of a ledger. Raises BadParameter."""
    return whole_number({"the ledger's id": text or "?"}, "the ledger's id", 0, 0, LEDGER_ID_MAX)


def log_name(text: str) -> str:
    """Return the name of a log. Raises BadParameter."""
    if not is_log_name(text):
        raise BadParameter(f"{text[:_SHOWN_MAX]!r} is not a name of a log: {LOG_NAME_RULE}")
    return text


def bookie_id(text: str) -> str:
    """Return the id of a bookie. Raises BadParameter."""
    try:
        if len(text) > TEXT_MAX:
            raise ValueError(f"a bookie id has at most {TEXT_MAX} characters")
        return check_bookie_id(text)
    except ValueError as error:
        raise BadParameter(str(error)) from None


def choice(values: Mapping[str, str], name: str, allowed: Collection[str], default: str) -> str:
    """Return one of the allowed words; the default if it is missing or empty. Raises BadParameter."""
    text = values.get(name, "") or default
    if text not in allowed:
        raise BadParameter(f"{name} is {text[:_SHOWN_MAX]!r}, not one of {', '.join(sorted(allowed))}")
    return text


def words(values: Mapping[str, str], name: str) -> str:
    """Return a line of text, without the space around it. Raises BadParameter."""
    text = values.get(name, "").strip()
    if len(text) > TEXT_MAX or not text.isprintable():
        raise BadParameter(f"{name} must be at most {TEXT_MAX} printable characters")
    return text
