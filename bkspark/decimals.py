"""Decimal numbers as Arrow can take them. PURE."""

from __future__ import annotations

from decimal import Decimal

PRECISION_MAX = 38
"""Most digits of a decimal of Arrow's decimal128, and of Spark."""
PLACES_MAX = PRECISION_MAX
"""Most digits after the point in Arrow's decimal128, the type that Spark's decimals have in Arrow."""


def for_arrow(number: Decimal) -> Decimal:
    """Return the same number with at most PLACES_MAX digits after the point.

    Arrow rescales a number to its column with a table of powers of ten, and does not check that the power is in the
    table: 1E-999999999 ended the process.

    Raises:
        ValueError: the number is not finite, or has more digits after the point that are not zero.
    """
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number} is not a decimal number")
    if exponent >= -PLACES_MAX:
        return number
    kept = len("".join(map(str, digits)).rstrip("0"))
    exponent += len(digits) - kept
    if not kept:
        return Decimal(0)
    if exponent < -PLACES_MAX:
        raise ValueError(f"{str(number)[:50]} has more than {PLACES_MAX} digits after the point")
    return Decimal((sign, digits[:kept], exponent))
