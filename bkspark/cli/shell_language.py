"""The parts of the verbs of `bkspark shell`: options in Apache's syntax, and the shell in which verbs run."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from bkspark.metadata.zookeeper_options import ZooKeeperOptions

Options = argparse.Namespace
VerbRun = Callable[["Shell", Options], int]
"""Runs a verb with its options; returns the exit code."""
_INT64 = 1 << 64
_DIGITS = {"long": re.compile("[0-9]{1,19}"), "hex": re.compile("[0-9a-fA-F]{1,16}")}
"""Ledger ids in two formats. `int` would take more for a number, such as 1_0."""
_REPLACING = (("bookie",), ("dump",), ("cluster", "recover"), ("cluster", "decommission"), ("ledger", "repair"))
"""The beginnings of commands that replace their process: the shell runs them as child processes."""


def number_of(text: str) -> int | None:
    """Return the number that a text of ASCII digits is; None: it is something else, or longer than any number here."""
    return int(text) if _DIGITS["long"].fullmatch(text) else None


FAILED = 255
"""Apache's -1, as a shell sees it."""
REFUSED = 1
"""The exit code of failed verbs that format or initialise, and of a few others for wrong options."""


class Failure(Exception):
    """A verb fails; the message says why, "" if that is printed already. code: the exit code; None: the verb's usual
    one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class ShellParser(argparse.ArgumentParser):
    """A parser of Apache's options, whose errors are failures."""

    def error(self, message: str) -> NoReturn:
        raise Failure(f"{self.prog}: {' '.join(message.split())}")


@dataclass(frozen=True, slots=True)
class VerbOption:
    """An option of a verb: its names without hyphens; `value`: what it takes, in brackets if that may be left out, ""
    for a switch."""

    names: tuple[str, ...]
    value: str = ""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it, each name with one hyphen, long ones with two as well."""
        flags = [f"-{name}" for name in self.names] + [f"--{name}" for name in self.names if len(name) > 1]
        name = max(self.names, key=len).replace("-", "_")
        if self.value.startswith("["):
            parser.add_argument(*flags, dest=name, nargs="?", const="")
        elif self.value:
            parser.add_argument(*flags, dest=name, metavar=self.value)
        else:
            parser.add_argument(*flags, dest=name, action="store_true")

    def __str__(self) -> str:
        return f"-{self.names[0]} {self.value}".strip()


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of Apache's shell.

    equal: our command, as people write it; words: arguments after the options; failed: its exit code when it fails.
    """

    name: str
    run: VerbRun
    equal: str
    options: tuple[VerbOption, ...] = ()
    words: str = ""
    note: str = ""
    """What differs from Apache's verb, for the page of the shell."""
    failed: int = FAILED


@dataclass(slots=True)
class Shell:
    """The shell's own options, before the verb. main: runs a command line of `bkspark` and returns its exit code."""

    main: Callable[[Sequence[str]], int]
    uri: str | None = None
    """The metadata URI of the command line; None: the configuration has it."""
    configuration: Path | None = None
    """The configuration file of the command line."""
    id_format: str = "long"
    """How ledger ids are written: "long", "hex" or "uuid"."""
    entry_format: str = "string"
    """How entries are written: "string" or "hex"."""
    values: dict[str, str] = field(default_factory=dict)
    """The keys that the configuration file sets, with their values."""

    def cluster(self, *words: object) -> int:
        """Run a command of `bkspark` on the cluster; return its exit code."""
        return self.bkspark(*words, "--uri", self.cluster_uri())

    def bkspark(self, *words: object) -> int:
        """Run a command of `bkspark`; return its exit code."""
        texts = list(map(str, words))
        if not any(texts[: len(each)] == list(each) for each in _REPLACING):
            return self.main(texts)
        sys.stdout.flush()
        return subprocess.run([sys.executable, "-m", "bkspark.cli", *texts], check=False).returncode

    def output(self, *words: object) -> dict[str, Any]:
        """Return the JSON that a command on the cluster prints. Raises Failure: it failed."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = self.cluster(*words, "--json")
        if code:
            raise Failure("")  # the command has printed why
        found: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])
        return found

    def local(self, *words: object) -> int:
        """Run a command on the files of the configured bookie."""
        return self.bkspark(*words, "--config", self.file())

    def cluster_uri(self) -> str:
        """Return the metadata URI: of the command line, the configuration, or BKSPARK_URI. Raises Failure."""
        if self.uri:
            return self.uri
        if "metadataServiceUri" in self.values:
            return self.values["metadataServiceUri"]
        if "zkServers" in self.values:
            servers = ";".join(each.strip() for each in self.values["zkServers"].split(","))
            return f"zk+null://{servers}{self.values.get('zkLedgersRootPath', '/ledgers')}"
        if os.environ.get("BKSPARK_URI"):
            return os.environ["BKSPARK_URI"]
        raise Failure("no cluster is named: give -conf FILE or --uri, or set BKSPARK_URI")

    def zookeeper(self) -> ZooKeeperOptions:
        """Return the options of the connection to ZooKeeper, for the commands that verbs run. Raises
        ConfigurationError."""
        from bkspark.metadata.zookeeper_options import read_zookeeper_file, zookeeper_options

        path = os.environ.get("BKSPARK_CLIENT_CONFIG")
        return read_zookeeper_file(path) if path else zookeeper_options({})

    def file(self) -> Path:
        """Return the configuration file. Raises Failure: none is given."""
        if self.configuration is None:
            raise Failure("this verb is about a bookie's files: give -conf FILE, its bk_server.conf, before the verb")
        return self.configuration

    def directories(self, *keys: str) -> list[Path]:
        """Return the `current` directories that the first of these keys names. Raises Failure."""
        self.file()
        for key in keys:
            if self.values.get(key):
                return [Path(each.strip(), "current") for each in self.values[key].split(",") if each.strip()]
        raise Failure(f"{self.file()} does not set {keys[0]}")

    def local_bookie(self) -> str:
        """Return the id of the configured bookie, from the cookie in its directories. Raises Failure."""
        from bkspark.metadata import cookies

        path = self.directories("ledgerDirectories")[0] / "VERSION"
        try:
            return cookies.decode(path.read_bytes(), str(path)).bookie_id
        except OSError as error:
            raise Failure(f"the bookie has no cookie at {path}: {error.strerror}") from None

    def shown_id(self, ledger_id: int) -> str:
        """Return a ledger's id as it is shown in the chosen format."""
        if self.id_format == "uuid":
            return str(uuid.UUID(int=ledger_id))
        return f"{ledger_id:x}" if self.id_format == "hex" else str(ledger_id)

    def ledger_id(self, text: str) -> int:
        """Return a ledger's id in the chosen format. Raises Failure."""
        found = -1
        if self.id_format == "uuid":
            with contextlib.suppress(ValueError):
                found = uuid.UUID(text).int % _INT64
        elif _DIGITS[self.id_format].fullmatch(text):
            found = int(text, 16 if self.id_format == "hex" else 10)
        if not 0 <= found < 1 << 63:
            raise Failure(f"{text!r:.50} is not the id of a ledger in format {self.id_format}")
        return found


def confirmed(question: str, *, is_forced: bool) -> bool:
    """Ask for Y or N on stdin, unless forced, as Apache's shell does."""
    if is_forced:
        return True
    print(f"{question} (Y or N) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def required(value: str | None, name: str) -> str:
    """Return the value of an option. Raises Failure: it is not given."""
    if value is None:
        raise Failure(f"-{name} is missing")
    return value


class Renamed(NamedTuple):
    """The ids of a bookie before and after it is named by its IP address instead of its host name, or the other way
    round."""

    old: str
    """The id before; `new`: the id after."""
    new: str


def renamed_bookie(shell: Shell, kind: str) -> Renamed | None:
    """Return the ids of the configured bookie if it is to be named by `kind`, "ip" or "hostname"; None, which is
    printed, if the configuration gives it a name. Raises Failure."""
    if kind not in ("ip", "hostname"):
        raise Failure(f"-bookieId {kind!r} is neither ip nor hostname")
    if (kind == "hostname") != (shell.values.get("useHostNameAsBookieID") == "true"):
        raise Failure(f"-bookieId {kind} does not fit useHostNameAsBookieID in {shell.file()}: change that first")
    fixed = [key for key in ("bookieId", "advertisedAddress") if shell.values.get(key)]
    if fixed:
        print(f"{fixed[0]} of {shell.file()} is the bookie's name, by IP address or not: nothing is changed")
        return None
    host, _, port = shell.local_bookie().rpartition(":")
    try:
        by_ip, by_name = socket.gethostbyname(host), socket.getfqdn(host)
    except OSError as error:
        raise Failure(f"the bookie's host {host!r} is not found: {error}") from None
    if shell.values.get("useShortHostName") == "true":
        by_name = by_name.partition(".")[0]
    if by_ip == by_name:
        raise Failure(f"{host!r} has no name beside its address: there is nothing to change")
    old, new = (by_name, by_ip) if kind == "ip" else (by_ip, by_name)
    return Renamed(f"{old}:{port}", f"{new}:{port}")
