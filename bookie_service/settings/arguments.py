"""The common part of the server's commands: options that name a configuration, and one-line errors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from bkspark.errors import ConfigurationError


class ServerParser(argparse.ArgumentParser):
    """Reports an error in one line, like every other error here."""

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see --help")


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add --config and --set."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a file of Apache's bk_server.conf syntax and keys")
    parser.add_argument(
        "--set", type=_key_value, action="append", default=[], metavar="KEY=VALUE", help="one key; wins over the file"
    )


def identifier(text: str) -> int:
    """An argparse type: a ledger or entry id."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 63):
        raise argparse.ArgumentTypeError(f"{text!r} is not an id, a whole number of at least 0")
    return int(text)


def describe(error: BaseException) -> str:
    """Return one line about an error, with the file's name when it has one."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror} (errno {error.errno})"
    return str(error)


def fail(program: str, error: object, code: int) -> int:
    """Print one line on stderr and return the exit code."""
    print(f"{program}: {error}", file=sys.stderr, flush=True)
    return code


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.strip(), value.strip()
