"""The options of TLS between tasks and bookies: Apache's keys of a client.

They name files, which the driver and every executor read themselves: no key is in a plan or a task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bkspark.spark import option_values as values
from bkspark.spark.option import ANY, Option
from bkspark.spark.option_values import OneOf
from bkspark.tls.client_keys import FACTORY, FIELDS, parse
from bkspark.tls.options import FACTORY_CLASS, StoreType

TLS = "tls"
"""The field of the parsed options that all TLS options set."""


class StoreTypes(OneOf):
    """Takes the name of a store type, in any case."""

    def __call__(self, value: str) -> Any:
        return StoreType[super().__call__(value)]


def _check(key: str) -> Callable[[str], Any]:
    return StoreTypes(*StoreType.__members__) if key.endswith("StoreType") else partial(_value, key)


def _value(key: str, text: str) -> Any:
    try:
        return parse(key, text if key == FACTORY else values.text(text))
    except ValueError as error:
        why = str(error)
        raise ValueError(why.removeprefix("it ") if why.startswith("it ") else f"is refused: {why}") from None


TLS_OPTIONS = (
    Option(FACTORY, TLS, _check(FACTORY), ANY, f"{FACTORY_CLASS} turns TLS on"),
    *(Option(key, TLS, _check(key), ANY, meaning) for key, (_, _, meaning) in FIELDS.items()),
)
