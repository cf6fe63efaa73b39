"""What the server's commands have in common: options that name a configuration, and errors of one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from bkspark.command_line import StdoutFailed, UnwritableText, failing_stdout, not_utf8
from bkspark.errors import ConfigurationError
from bkspark.extras import explain
from bkspark.ids import INT64_MAX

_VARIABLE = "BK_"


class ServerParser(argparse.ArgumentParser):
    """Reports an error in one line, like every other error here."""

    # Typeshed has four overloads of it, by the type of the namespace, which says nothing here.
    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse, and refuse an unknown option without its value: that may be a password. Refuse a text that is not
        UTF-8."""
        words = sys.argv[1:] if args is None else list(args)
        # The options after a command are for the command's own parser, and there are none after `--`.
        end = 1 if self._subparsers is not None else words.index("--") if "--" in words else len(words)
        for word in words[:end]:
            name = word.partition("=")[0]
            if _is_option(name) and name not in self._option_string_actions:
                self.error(f"unknown argument {name if name.startswith('--') else name[:2]!r}")
        namespace, unknown = super().parse_known_args(words, namespace)
        if reason := not_utf8(self._actions, namespace):
            self.error(reason)
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message}; see --help")


def _is_option(word: str) -> bool:
    """Return whether argparse takes a word for an option."""
    return word.startswith("-") and word != "-" and not word[1:2].isdigit() and " " not in word


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add --config, --environment and --set."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a file with the syntax and keys of Apache's bk_server.conf"
    )
    parser.add_argument(
        "--environment", action="store_true", help="also read keys from variables BK_KEY, which override the file"
    )
    parser.add_argument(
        "--set", type=_key_value, action="append", default=[], metavar="KEY=VALUE", help="one key; overrides all others"
    )


def settings(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the keys that are not in the file, as `add_configuration` parsed them. Later ones win."""
    return [*(variables(os.environ) if arguments.environment else []), *arguments.set]


def variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the keys that variables such as BK_bookiePort set, as in Apache's image.

    Keys begin with a small letter. Other variables have other uses: BK_DATA_DIR and the like are for the image's entry
    point, and Kubernetes sets BK_PORT for a service called bk. An empty variable sets nothing.
    """
    found = ((name.removeprefix(_VARIABLE), value) for name, value in environment.items() if name.startswith(_VARIABLE))
    return sorted((key, value) for key, value in found if key[:1].islower() and value.strip())


def whole_number(text: str) -> int:
    """An argparse type: a whole number of at least 0, such as the id of a ledger or an entry."""
    # Python refuses to convert thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= INT64_MAX):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of 0 to {INT64_MAX}")
    return int(text)


def describe(error: BaseException) -> str:
    """Return one line about an error, with the name of its file if it has one."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror} (errno {error.errno})"
    return str(error)


def fail(program: str, error: object, code: int) -> int:
    """Print one line on stderr and return the exit code."""
    print(f"{program}: {error}", file=sys.stderr, flush=True)
    return code


def run_reported(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run`, whose output is flushed; 1, after a line that says why, if a package of an extra
    is not installed, the output cannot be written, or an error names a file. No line is written if the reader of the
    output has left (`| head`)."""
    try:
        with failing_stdout():
            return run()
    except StdoutFailed as error:
        # Python would complain again when it flushes at exit.
        os._exit(1 if error.reader_has_left else fail(program, error, 1))
    except UnwritableText as error:
        return fail(program, error, 1)
    except OSError as error:
        if error.filename is None:
            raise
        return fail(program, describe(error), 1)
    except ModuleNotFoundError as missing:
        if reason := explain(missing):
            return fail(program, reason, 1)
        raise


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not key=value")
    return key.strip(), value.strip()
