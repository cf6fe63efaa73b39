"""The options that limit what clients of the console may use up."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bkspark.cli.arguments import Parser
from bkspark.cli.console import add_arguments
from bkspark.cli.console_limits import LIMIT_OPTIONS, ConsoleLimits, limits_of, words_of

PAGE = Path(__file__).parents[2] / "docs" / "console.md"
WORDS = {
    "connections": "7",
    "idle_s": "1.5",
    "form_s": "2",
    "tails": "3",
    "handshakes": "4",
    "handshake_s": "0.25",
}


def parsed(*words: str) -> ConsoleLimits:
    parser = Parser(prog="bkspark console")
    add_arguments(parser)
    arguments = parser.parse_args(words)
    # The command starts the console by these words.
    assert limits_of(parser.parse_args(words_of(arguments))) == limits_of(arguments)
    return limits_of(arguments)


def test_without_options_the_limits_are_the_defaults() -> None:
    assert parsed() == ConsoleLimits()


def test_each_limit_has_an_option_that_sets_it() -> None:
    words = [word for field, value in WORDS.items() for word in (LIMIT_OPTIONS[field][0], value)]
    limits = parsed(*words)
    assert {field.name: f"{getattr(limits, field.name):g}" for field in fields(limits)} == WORDS


@pytest.mark.parametrize("field", list(LIMIT_OPTIONS))
@pytest.mark.parametrize("value", ["0", "-1", "x", "", "nan", "1e300"])
def test_value_out_of_bounds_is_refused(field: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    option = LIMIT_OPTIONS[field][0]
    with pytest.raises(SystemExit) as end:
        parsed(option, value)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"argument {option}: {value!r} is not a (whole number|number of seconds) from ", line), line


def test_documentation_has_each_option_and_its_default() -> None:
    page = PAGE.read_text()
    for field, (option, _) in LIMIT_OPTIONS.items():
        (line,) = [line for line in page.splitlines() if line.startswith("| ") and f"`{option}`" in line]
        assert f"({getattr(ConsoleLimits(), field):g})" in line, option
