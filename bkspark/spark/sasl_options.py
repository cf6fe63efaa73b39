"""The options of authentication at bookies: Apache's keys of a client.

They name files, which the driver and every executor read themselves: no password is in a plan or a task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bkspark.security.client_keys import FIELDS, PROVIDER, ROLE, ROLES, parse
from bkspark.spark import option_values as values
from bkspark.spark.option import ANY, Option
from bkspark.spark.option_values import OneOf

SASL = "sasl"
"""The field of the parsed options that all SASL options set."""


def _value(key: str, text: str) -> Any:
    try:
        return parse(key, text if key == PROVIDER else values.text(text))
    except ValueError as error:
        raise ValueError(str(error).removeprefix("it ")) from None


def _check(key: str) -> Callable[[str], Any]:
    return OneOf(*ROLES) if key == ROLE else partial(_value, key)


SASL_OPTIONS = tuple(Option(key, SASL, _check(key), ANY, meaning) for key, (_, meaning) in FIELDS.items())
