"""What all command lines share: words that are not UTF-8 are refused by name, and errors of stdout are recognised.

Errors of the same classes that come from elsewhere are not errors of stdout.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, TextIO, cast

from bkspark.one_line import SHOWN_CHARACTERS_MAX

_FILES = ("FILE", "PATH", "COMMAND")
"""Metavars of arguments whose words may have any bytes: they name files. Those with the type `os.fspath` may, too."""
_NOT_UTF8 = re.compile("[\ud800-\udfff]+")
"""What Python has in place of bytes of a command line that are not UTF-8."""
_HANDLER = "bkspark.output"


class UnwritableText(Exception):
    """A text cannot be written to stdout, whose encoding lacks characters of it; the message is one line."""


def not_utf8(actions: Iterable[argparse.Action], parsed: argparse.Namespace) -> str | None:
    """Return one line about the first parsed argument that is a text, and no UTF-8; None: there is none.

    It shows only the characters that are wrong, because the text may be a password.
    """
    for action in actions:
        if action.type is os.fspath or action.metavar in _FILES:
            continue
        value = getattr(parsed, action.dest, None)
        for each in value if isinstance(value, list) else [value]:
            # KEY=VALUE is parsed to two texts.
            text = "=".join(each) if isinstance(each, tuple) else each
            if isinstance(text, str) and (found := _NOT_UTF8.search(text)):
                name = "/".join(action.option_strings) or str(action.metavar or action.dest)
                key = f" {each[0]}" if isinstance(each, tuple) and each[0].isprintable() else ""
                return f"argument {name}{key}: {_escaped(found[0])} is not UTF-8"
    return None


def name_errors_of_stdout() -> None:
    """From now on, a text that the encoding of stdout lacks raises UnwritableText. Otherwise it would raise
    UnicodeEncodeError, as a text that is encoded elsewhere does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=_HANDLER)


class StdoutFailed(Exception):
    """Stdout cannot be written. The class is not one of OSError, so that no error of a file is taken for it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.reader_has_left = isinstance(error, BrokenPipeError)
        """Whether the reader of the output has left."""


@contextlib.contextmanager
def failing_stdout() -> Iterator[None]:
    """While entered, and at its end, writing to stdout raises StdoutFailed in place of an OSError, and UnwritableText
    as `name_errors_of_stdout` says."""
    if sys.stdout is None:
        yield
        return
    name_errors_of_stdout()
    stdout = _Stdout(sys.stdout)
    with contextlib.redirect_stdout(cast(TextIO, stdout)):
        yield
        stdout.flush()


def discard_stdout() -> None:
    """From now on, drop what is written to stdout, and what could not be written until now."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stdout:
    """Writes to stdout."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, text: str) -> int:
        try:
            return self._output.write(text)
        except OSError as error:
            raise StdoutFailed(error) from error

    def flush(self) -> None:
        try:
            self._output.flush()
        except OSError as error:
            raise StdoutFailed(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def _refuse(error: UnicodeError) -> NoReturn:
    """Handle an error of stdout's encoder."""
    assert isinstance(error, UnicodeEncodeError)
    wanted = "utf-8:backslashreplace" if error.encoding == "utf-8" else "utf-8"
    wrong = _escaped(error.object[error.start : error.end])
    raise UnwritableText(
        f"the output has the encoding {error.encoding}, which lacks {wrong}: set PYTHONIOENCODING={wanted}"
    )


def _escaped(text: str) -> str:
    return text[:SHOWN_CHARACTERS_MAX].encode("unicode_escape").decode()


codecs.register_error(_HANDLER, _refuse)
