"""Each options class refuses, when one is made, what each of its fields cannot be; the error names all three."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import typing
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.options import Bounds, bounded, bounds_of, check
from tests.sources import python_files

ROOT = Path(__file__).parent.parent
PACKAGES = ("bkspark", "bookie_service")
DERIVED = {
    "bkspark.core.limits.WriterLimits": "derived from WriterOptions alone",
    "bkspark.spark.options.SourceOptions": "made by `parse` alone, which checks text (tests/spark/test_options.py)",
    "bkspark.spark.typed_options.Options": "no dataclass; checked by the parser that it makes options for",
}
"""Classes that users and keys never fill."""
REQUIRED = {
    "AddressOptions": {"port": 3181},
    "CompactionLevel": {"threshold": 0.2, "interval_s": 3600.0},
    "ServiceOptions": {"journal_directories": ("/journal",), "ledger_directories": ("/ledgers",)},
    "ShareLimits": {"all": 8, "per_address": 4, "per_connection": 2},
}
"""Fields without a default."""


_OF_OPTIONS = re.compile(r"^class (\w*(?:Options|Limits|Durability|CompactionLevel))\b", re.MULTILINE)


def _options_classes():
    for path in python_files(ROOT, PACKAGES):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in _OF_OPTIONS.findall(path.read_text()):
            if f"{module}.{name}" not in DERIVED:
                kind = getattr(importlib.import_module(module), name)
                if dataclasses.is_dataclass(kind):
                    yield kind


CLASSES = tuple(_options_classes())
FIELDS = [(kind, field.name) for kind in CLASSES for field in dataclasses.fields(kind)]


def made(kind, **values):
    return kind(**{**REQUIRED.get(kind.__name__, {}), **values})


def wrong_values(kind, name):
    """What a field cannot be: out of range, of another type, nan, infinite, a bool where a number belongs."""
    bounds, annotation = bounds_of(kind, name), typing.get_type_hints(kind)[name]
    wrong = [object(), [object()], {"a": object()}, math.nan, math.inf, -math.inf, 1 + 2j]
    wrong += [] if annotation is bool else [True, False]
    wrong += [] if type(None) in typing.get_args(annotation) else [None]
    wrong += [] if str in (annotation, *typing.get_args(annotation)) else ["3"]
    if bounds is None:
        return [*wrong, 0, 1, 1.5]
    beyond = [bounds.least - 1, bounds.most * 2, -bounds.most * 2 - 1]
    return [*wrong, *beyond, *([1.5, bounds.least + 0.5] if bounds.is_whole else [])]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_each_field_refuses_what_is_wrong_when_the_options_are_made(kind, name):
    for value in wrong_values(kind, name):
        with pytest.raises(ConfigurationError) as refused:
            made(kind, **{name: value})
        assert f"{kind.__name__}.{name} must be" in str(refused.value), value
        assert repr(value)[:80] in str(refused.value)


@pytest.mark.parametrize("kind", CLASSES)
def test_each_number_has_bounds_and_its_default_lies_within(kind):
    made(kind)
    annotations = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        bounds = bounds_of(kind, field.name)
        is_number = {int, float} & {annotations[field.name], *typing.get_args(annotations[field.name])}
        if bounds is None:
            assert annotations[field.name] not in (int, float)
            continue
        assert is_number
        assert bounds.is_whole == (int in is_number), "a whole number has whole bounds"
        for value in (bounds.least, bounds.most):
            bounds.check(field.name, value)


def test_each_message_names_the_option_the_value_and_what_is_right():
    @dataclasses.dataclass(frozen=True)
    class RetryOptions:
        retries_max: int = bounded(3, 0, 100)
        pause_s: float = bounded(0.5, 0.001, 60.0, "seconds")
        limit: int | None = bounded(None, 1, 5)
        is_patient: bool = False
        names: tuple[str, ...] = ()
        tags: dict[str, int] = dataclasses.field(default_factory=dict)

        def __post_init__(self):
            check(self)

    right = {"retries_max": 0, "pause_s": 60, "limit": 5, "is_patient": True, "names": ("a",), "tags": {"a": 1}}
    assert dataclasses.asdict(RetryOptions(**right)) == right
    for wrong, message in (
        ({"retries_max": 101}, "RetryOptions.retries_max must be from 0 to 100, not 101"),
        ({"retries_max": "7"}, "RetryOptions.retries_max must be a whole number from 0 to 100, not '7'"),
        ({"retries_max": True}, "RetryOptions.retries_max must be from 0 to 100, not True"),
        ({"pause_s": 0}, "RetryOptions.pause_s must be a number from 0.001 to 60 seconds, not 0"),
        ({"pause_s": math.nan}, "RetryOptions.pause_s must be a number from 0.001 to 60 seconds, not nan"),
        ({"limit": 6}, "RetryOptions.limit must be from 1 to 5, not 6"),
        ({"is_patient": 1}, "RetryOptions.is_patient must be True or False, not 1"),
        ({"names": "ab"}, "RetryOptions.names must be tuple[str, ...], not 'ab'"),
        ({"names": ("a", 1)}, "RetryOptions.names must be tuple[str, ...], not ('a', 1)"),
        ({"tags": {"a": True}}, "RetryOptions.tags must be dict[str, int], not {'a': True}"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            RetryOptions(**wrong)
        assert str(refused.value) == message


def test_bounds_are_whole_only_where_both_are():
    assert Bounds(0, 5).is_whole
    assert not Bounds(0.0, 5).is_whole
