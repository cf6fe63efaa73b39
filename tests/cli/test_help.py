"""What `--help` says: every command has a sentence, and every option says what it means."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from bkspark.cli.__main__ import build_parser


def commands(parser: argparse.ArgumentParser, words: str = "bkspark") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command that has no commands below it, with its parser."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield words, parser
    for name, below in groups[0].choices.items() if groups else ():
        yield from commands(below, f"{words} {name}")


COMMANDS = dict(commands(build_parser()))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_what_it_and_its_options_do(command: str) -> None:
    parser = COMMANDS[command]
    if command.split()[1] == "shell":
        return  # it prints the verbs of Apache's shell, with Apache's options
    assert parser.description
    for action in parser._actions:
        said = re.sub(r"\(?default: .*", "", action.help or "").strip()
        assert said, action.option_strings or action.dest
