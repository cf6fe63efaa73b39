"""The options of the connections that the driver and tasks have to ZooKeeper: the keys of ZooKeeper's own client.

They name files, which the driver and every executor read themselves: no password is in a plan or a task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bkspark.metadata.zookeeper_options import JAAS_FILE, KEYS, parse
from bkspark.spark import option_values as values
from bkspark.spark.option import ANY, Option
from bkspark.spark.tls_options import StoreTypes
from bkspark.tls.options import StoreType

ZOOKEEPER = "zookeeper"
"""The field of all of them, and how most of their names begin."""


def _check(key: str) -> Callable[[str], Any]:
    if KEYS[key].parse is StoreType.parse:
        return StoreTypes(*StoreType.__members__)
    return values.flag if KEYS[key].is_flag else partial(_value, key)


def _value(key: str, text: str) -> Any:
    try:
        return parse(key, values.text(text))
    except ValueError as error:
        raise ValueError(str(error).removeprefix("it ")) from None


ZOOKEEPER_OPTIONS = tuple(
    # The JAAS file is an option of SASL: one file serves both.
    Option(name, ZOOKEEPER, _check(name), ANY, key.meaning)
    for name, key in KEYS.items()
    if name != JAAS_FILE
)
