"""Options that many commands share, and a parser whose errors are one line.

Environment variables replace missing options: BKSPARK_URI for --uri, BKSPARK_PASSWORD_FILE for --password-file,
BKSPARK_PASSWORD for --password, BKSPARK_ENCRYPTION_KEY_FILE for --encryption-key-file, BKSPARK_CLIENT_CONFIG for
--client-config.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from bkspark.command_line import not_utf8
from bkspark.errors import ConfigurationError
from bkspark.ids import DIGESTS, INT64_MAX, LOG_NAME_RULE, PORT_MAX, check_bookie_id, is_log_name
from bkspark.secret_files import (
    ENCRYPTION_KEY_FILE_VARIABLE,
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    password_from,
    read_password,
)

if TYPE_CHECKING:
    from bkspark.ledger.encryption import EncryptionOptions
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions
    from bkspark.net.pool import NetOptions

# Every command's parser is built to print any help; the imports above decide how fast that is.

INPUT_FORMATS = ("lines", "length-prefixed")
OUTPUT_FORMATS = ("lines", "length-prefixed", "json", "hex", "ids")
"""How entries look as a byte stream: see `bkspark.cli.entry_formats`."""

ENTRY_BYTES_MAX = 5 * 1024 * 1024 - 1024
"""The largest entry accepted: Apache's default frame limit, less the room for header, ids and digest."""

_AGE = re.compile(r"([0-9]{1,9}) ?([smhd])")
SECONDS_MAX = 1_000_000_000
"""More than 30 years. Clocks, timers and calendars accept it."""
AGE_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The result of `add_subparsers`, to which a command adds its parser. It is generic only in argparse's stub."""

Run: TypeAlias = Callable[[argparse.Namespace], int]
"""Carries out a command; returns the exit code."""

USAGE = 2
"""Exit code of a command line that cannot be understood."""


class Parser(argparse.ArgumentParser):
    """An argument parser that takes no abbreviations and reports an error in one line."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # Passed on unchanged: each version of Python's ArgumentParser accepts other ones.
        super().__init__(*args, **options)  # type: ignore[arg-type]

    # Typeshed has four overloads of it, by the type of the namespace, which says nothing here.
    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse, and refuse an unknown option here, where similar options are known, and texts that are not UTF-8."""
        words = sys.argv[1:] if args is None else list(args)
        first = words[0] if words and self._subparsers is not None else ""
        if first.startswith("-") and first.split("=")[0] not in self._option_string_actions:
            # Otherwise the next word, which may be a password, would be regarded as a command and shown in the message.
            self._refuse(first)
        namespace, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self._refuse(unknown[0])
        if reason := not_utf8(self._actions, namespace):
            self.error(reason)
        return namespace, unknown

    def _refuse(self, argument: str) -> NoReturn:
        # The message omits the option's value, which may be a password.
        name = argument.split("=")[0]
        shown = name[:2] if name.startswith("-") and not name.startswith("--") else name
        self.error(f"unknown argument {shown!r}{self._nearest(name)}")

    def error(self, message: str) -> NoReturn:
        one_line = " ".join(message.split())
        print(f"{self.prog}: {one_line}; see '{self.prog} --help'", file=sys.stderr)
        raise SystemExit(USAGE)

    def _nearest(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._option_string_actions, n=1)
        return f" (did you mean {close[0]}?)" if name.startswith("-") and close else ""


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for programs on stdout")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add --uri, --client-config and --json."""
    parser.add_argument(
        "--uri",
        default=os.environ.get("BKSPARK_URI"),
        help="metadata URI of the cluster, such as zk://127.0.0.1:2181/ledgers (default: $BKSPARK_URI)",
    )
    parser.add_argument(
        "--client-config",
        default=os.environ.get("BKSPARK_CLIENT_CONFIG"),
        metavar="FILE",
        help="a file with Apache's keys of a client that protect its connections (default: $BKSPARK_CLIENT_CONFIG)",
    )
    add_json(parser)


def add_command(commands: Commands, name: str, run: Run, description: str) -> argparse.ArgumentParser:
    """Add a command about a cluster, with the options of `add_cluster`; return its parser."""
    parser = commands.add_parser(name, help=description, description=f"{description[0].upper()}{description[1:]}.")
    add_cluster(parser)
    parser.set_defaults(run=run)
    return parser


def add_credentials(parser: argparse.ArgumentParser) -> None:
    """Add --password-file, --password, --encryption-key-file and --digest."""
    add_password(parser, "ledger password")
    parser.add_argument(
        "--encryption-key-file",
        default=os.environ.get(ENCRYPTION_KEY_FILE_VARIABLE) or None,
        metavar="FILE",
        help="file with the keys that new ledgers are encrypted with and encrypted ones are read with "
        f"(default: ${ENCRYPTION_KEY_FILE_VARIABLE}, else new ledgers are clear)",
    )
    parser.add_argument("--digest", choices=DIGESTS, default="crc32c", help="how entries are checked (default: crc32c)")


def add_password(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --password-file and --password."""
    parser.add_argument(
        "--password-file", metavar="FILE", help=f"file with the {what} (default: ${PASSWORD_FILE_VARIABLE})"
    )
    parser.add_argument(
        "--password",
        help=f"{what}, which users of this host can see in the list of processes: prefer --password-file "
        f"(default: ${PASSWORD_VARIABLE}, else empty)",
    )


def password_variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that give a child process the same password; an empty one counts as not set.

    Raises:
        ConfigurationError: both options are given, or both variables are set.
    """
    password, path = arguments.password, arguments.password_file
    if password is not None and path is not None:
        raise ConfigurationError("--password and --password-file exclude each other: give one of them")
    if password is None and path is None:
        password, path = os.environ.get(PASSWORD_VARIABLE), os.environ.get(PASSWORD_FILE_VARIABLE)
    return {PASSWORD_VARIABLE: password or "", PASSWORD_FILE_VARIABLE: path or ""}


def secret_variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return `password_variables`, and the variable that names the file of encryption keys. Raises as that."""
    return {**password_variables(arguments), ENCRYPTION_KEY_FILE_VARIABLE: arguments.encryption_key_file or ""}


def ledger_password(arguments: argparse.Namespace) -> bytes:
    """Return the password that options or the environment give.

    Raises:
        ConfigurationError: the file cannot be used, or two passwords are given.
    """
    if arguments.password_file is not None and arguments.password is None:
        return read_password(arguments.password_file, f"--password-file {arguments.password_file}")
    return password_from(password_variables(arguments))


def client_encryption(arguments: argparse.Namespace) -> EncryptionOptions:
    """Return the encryption options of a command's client; without keys it returns encrypted entries as stored.

    Raises:
        ConfigurationError: the file of --encryption-key-file cannot be used.
    """
    from bkspark.ledger.encryption import EncryptionOptions

    path = arguments.encryption_key_file
    options = EncryptionOptions(path, "--encryption-key-file", shows_sealed=path is None)
    options.check_keys()
    return options


def add_quorums(parser: argparse.ArgumentParser) -> None:
    """Add --ensemble, --write-quorum and --ack-quorum, 3/3/2 by default."""
    parser.add_argument(
        "--ensemble", type=positive, default=3, metavar="E", help="bookies per fragment (default: %(default)s)"
    )
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


def client_net(arguments: argparse.Namespace) -> NetOptions:
    """Return the options of connections to bookies, from --client-config.

    Raises:
        ConfigurationError: the file that --client-config names cannot be read, or a key of it is wrong.
    """
    from bkspark.net.pool import NetOptions
    from bkspark.security.client_keys import read_client_sasl
    from bkspark.tls.client_keys import read_client_file

    path = getattr(arguments, "client_config", None)
    return NetOptions(tls=read_client_file(path), sasl=read_client_sasl(path)) if path else NetOptions()


def client_zookeeper(arguments: argparse.Namespace) -> ZooKeeperOptions:
    """Return the options of the connection to ZooKeeper, from --client-config.

    Raises:
        ConfigurationError: the file that --client-config names cannot be read, or a key of it is wrong.
    """
    from bkspark.metadata.zookeeper_options import read_zookeeper_file, zookeeper_options

    path = getattr(arguments, "client_config", None)
    return read_zookeeper_file(path) if path else zookeeper_options({})


def excluded(arguments: argparse.Namespace, given: str, *names: str) -> None:
    """Raise ConfigurationError if an option is given that has no effect, or no meaning, beside the option `given`."""
    for name in names:
        if getattr(arguments, name, None):
            first, second = (each.replace("_", "-") for each in (given, name))
            raise ConfigurationError(f"--{first} and --{second} exclude each other: give one of them")


def bookie_id(text: str) -> str:
    """An argparse type: the id of a bookie."""
    try:
        return check_bookie_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def log_name(text: str) -> str:
    """An argparse type: the name of a log."""
    if not is_log_name(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not the name of a log: {LOG_NAME_RULE}")
    return text


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


def place_or_time(text: str) -> str | datetime:
    """An argparse type: a time (an age such as 7d, or ISO 8601), or the text of a position as it is."""
    from bkspark.log.positions import EARLIEST, LATEST

    found = _AGE.fullmatch(text.strip())
    try:
        if found is not None:
            return datetime.now(UTC) - timedelta(seconds=int(found[1]) * AGE_S[found[2]])
        return datetime.fromisoformat(text)
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is before the year 1") from None
    except ValueError:
        if not text.lstrip().startswith("{") and text.strip().lower() not in (EARLIEST, LATEST):
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a position, earliest, latest, a time such as 2026-11-21T05:00Z, nor an age such "
                "as 7d"
            ) from None
        return text


def age(text: str) -> float:
    """An argparse type: a time span above 0 with its unit, such as 90s, 30m, 12h or 7d, in seconds."""
    found = _AGE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time such as 90s, 30m, 12h or 7d")
    return float(int(found[1]) * AGE_S[found[2]])


def seconds(text: str) -> float:
    """An argparse type: a number above 0, and of at most SECONDS_MAX."""
    try:
        value = float(text) if text.isascii() else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds above 0, {SECONDS_MAX} at most")
    return value


def port(text: str) -> int:
    """An argparse type: a TCP port."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a port of 1 to {PORT_MAX}")
    return int(text)


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Add --environment, which the server's package carries out."""
    parser.add_argument(
        "--environment", action="store_true", help="also read keys from variables BK_KEY, which override the file"
    )


def key_value(text: str) -> tuple[str, str]:
    """An argparse type: `key=value` with a key."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not key=value")
    return key.strip(), value.strip()


def _whole_number(text: str, minimum: int) -> int:
    # Python refuses to convert thousands of digits; nothing of more than 19 is an int64.
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not minimum <= int(text) <= INT64_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of {minimum} to {INT64_MAX}")
    return int(text)
