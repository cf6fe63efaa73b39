"""Options that many commands share, and a parser whose errors are one line.

Environment variables replace missing options: BKSPARK_URI for --uri, BKSPARK_PASSWORD for --password.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from typing import NoReturn, TypeAlias

from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS

# Every command's parser is built to print any help; the imports above decide how fast that is.

INPUT_FORMATS = ("lines", "length-prefixed")
OUTPUT_FORMATS = ("lines", "length-prefixed", "json")
"""How entries look as a byte stream: see `bkspark.cli.entry_formats`."""

ENTRY_BYTES_MAX = 5 * 1024 * 1024 - 1024
"""The largest entry accepted: Apache's default frame limit, less the room for header, ids and digest."""

_INT64_MAX = (1 << 63) - 1

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where a command adds its parser: what `add_subparsers` returns. Only argparse's stub knows that it is generic."""

USAGE = 2
"""Exit code of a command line that cannot be understood."""


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and reports an error in one line."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # Passed on as they came: each Python's ArgumentParser takes others.
        super().__init__(*args, **options)  # type: ignore[arg-type]

    # Typeshed has four overloads of it, by the type of the namespace, which says nothing here.
    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse, and refuse an unknown option here, where the options it may have meant are known."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0]!r}{self._nearest(unknown[0])}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        one_line = " ".join(message.split())
        print(f"{self.prog}: {one_line}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(USAGE)

    def _nearest(self, argument: str) -> str:
        name = argument.split("=")[0]
        close = difflib.get_close_matches(name, self._option_string_actions, n=1)
        return f" (did you mean {close[0]}?)" if name.startswith("-") and close else ""


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs on stdout")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add --uri and --json."""
    parser.add_argument(
        "--uri",
        default=os.environ.get("BKSPARK_URI"),
        help="metadata URI of the cluster, such as zk://127.0.0.1:2181/ledgers (default: $BKSPARK_URI)",
    )
    add_json(parser)


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add --password and --digest."""
    parser.add_argument(
        "--password",
        default=os.environ.get("BKSPARK_PASSWORD", ""),
        help="ledger password (default: $BKSPARK_PASSWORD, else empty)",
    )
    parser.add_argument("--digest", choices=DIGESTS, default="crc32c", help="how entries are checked (default: crc32c)")


def add_quorums(parser: argparse.ArgumentParser) -> None:
    """Add --ensemble, --write-quorum and --ack-quorum, 3/3/2 by default."""
    parser.add_argument("--ensemble", type=positive, default=3, metavar="E", help="bookies per fragment (default: 3)")
    parser.add_argument("--write-quorum", type=positive, metavar="W", help="copies of an entry (default: E, at most 3)")
    parser.add_argument(
        "--ack-quorum", type=positive, metavar="A", help="copies before an add is acknowledged (default: W/2 + 1)"
    )


def quorums(arguments: argparse.Namespace) -> tuple[int, int, int]:
    """Return (E, Qw, Qa) with defaults for those not given.

    Raises:
        ConfigurationError: E >= Qw >= Qa does not hold.
    """
    from bkspark.core.metadata import check_quorums

    ensemble = arguments.ensemble
    write = arguments.write_quorum or min(ensemble, 3)
    ack = arguments.ack_quorum or write // 2 + 1
    try:
        check_quorums(ensemble, write, ack)
    except ValueError as error:
        raise ConfigurationError(
            f"--ensemble {ensemble} --write-quorum {write} --ack-quorum {ack}: {error}; choose E >= W >= A >= 1"
        ) from error
    return ensemble, write, ack


def cluster_uri(arguments: argparse.Namespace) -> str:
    """Return the cluster's URI, checked for its syntax.

    Raises:
        ConfigurationError: it is not given anywhere, or is not a metadata URI.
    """
    from bkspark.metadata.uri import MetadataUri

    if not arguments.uri:
        raise ConfigurationError("no cluster is named: give --uri zk://HOST:PORT/ledgers or set BKSPARK_URI")
    MetadataUri.parse(arguments.uri)
    return arguments.uri


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    return _whole_number(text, 1)


def not_negative(text: str) -> int:
    """An argparse type: a whole number of at least 0."""
    return _whole_number(text, 0)


def entry_size(text: str) -> int:
    """An argparse type: the payload bytes of an entry that default frames can carry."""
    value = _whole_number(text, 0)
    if value > ENTRY_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is above {ENTRY_BYTES_MAX}, the largest entry")
    return value


def value_size(text: str) -> int:
    """An argparse type: as `entry_size`, but of at least one byte."""
    positive(text)
    return entry_size(text)


def above_zero(text: str, what: str = "a number") -> float:
    """An argparse type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} above 0")
    return value


def seconds(text: str) -> float:
    """An argparse type: a number above 0."""
    return above_zero(text, "a number of seconds")


def port(text: str) -> int:
    """An argparse type: a TCP port."""
    value = _whole_number(text, 1)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port of 1 to 65535")
    return value


def key_value(text: str) -> tuple[str, str]:
    """An argparse type: `key=value` with a key."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.strip(), value.strip()


def _whole_number(text: str, minimum: int) -> int:
    # Python refuses to convert thousands of digits; nothing of more than 19 is an int64.
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not minimum <= int(text) <= _INT64_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of {minimum} to {_INT64_MAX}")
    return int(text)
