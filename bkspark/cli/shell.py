"""`bkspark shell VERB`: the verbs of Apache's `bookkeeper shell`, with its options and exit codes.

    bkspark shell [-conf FILE] [--uri URI] [-ledgeridformat long|hex|uuid] [-entryformat string|hex] VERB [OPTION]...

Each verb runs the command of `bkspark` that is its equal (`shell_verbs`), and prints what that prints. The exit code is
0 or that of Apache's shell: 255 for most failures, as its -1 looks to a caller, and 1 for some. Verbs about a bookie's
files take its directories from FILE, a bk_server.conf.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from bkspark.cli.arguments import Commands
from bkspark.cli.shell_language import FAILED, Failure, Shell, ShellParser, Verb
from bkspark.configuration_files import read, resolved
from bkspark.errors import BookKeeperError, ConfigurationError

HELP = "help"


def add_parser(commands: Commands, main: Callable[[Sequence[str]], int]) -> None:
    """Add `bkspark shell`; it reads its words itself, as they are Apache's. `main` runs a command line of `bkspark`."""
    description = "run a verb of Apache's bookkeeper shell; `bkspark shell help` lists them"
    parser = commands.add_parser("shell", help=description, description=description, add_help=False, prefix_chars="\0")
    # Some name files, whose names may have any bytes. The commands that the verbs run check the others.
    parser.add_argument("words", nargs="*", type=os.fspath)
    parser.set_defaults(run=run, main=main)


def run(arguments: argparse.Namespace) -> int:
    """Run a verb; return its exit code."""
    failed = FAILED
    try:
        at = _verb_at(arguments.words)
        shell, words = _shell(arguments.words[:at], arguments.main), arguments.words[at:]
        if not words or words[0] in (HELP, "-help", "--help", "-h"):
            if words[1:] and words[0] == HELP:
                print_usage(_verb(words[1]))
            else:
                print_help(_verbs().values())
            return 0 if words else FAILED
        verb, options = _parsed(words)
        failed = verb.failed
        return failed if verb.run(shell, options) else 0
    except (Failure, ConfigurationError, BookKeeperError) as error:
        if message := " ".join(str(error).split()):
            print(f"bkspark: {message}", file=sys.stderr)
        code = error.code if isinstance(error, Failure) else None
        return failed if code is None else code


def _verbs() -> dict[str, Verb]:
    from bkspark.cli.shell_verbs import VERBS

    return {verb.name: verb for verb in VERBS}


def _verb(name: str) -> Verb:
    verb = _verbs().get(name)
    if verb is None:
        raise Failure(f"there is no verb {name!r}; `bkspark shell help` lists all")
    return verb


def _parsed(words: Sequence[str]) -> tuple[Verb, argparse.Namespace]:
    """Return the verb that words begin with, and its options. Raises Failure."""
    verb = _verb(words[0])
    parser = ShellParser(prog=f"bkspark shell {verb.name}", allow_abbrev=False, add_help=False)
    for option in verb.options:
        option.add_to(parser)
    parser.add_argument("words", nargs="*")
    options = parser.parse_intermixed_args(words[1:])
    if options.words and not verb.words:
        raise Failure(f"{parser.prog}: unknown argument {options.words[0]!r}")
    if verb.words and not verb.words.startswith("[") and not options.words:
        raise Failure(f"{parser.prog}: it takes {verb.words}")
    return verb, options


_WITH_VALUE = ("-conf", "--conf", "--uri", "-ledgeridformat", "--ledgeridformat", "-entryformat", "--entryformat")


def _verb_at(words: Sequence[str]) -> int:
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-help", "--help", "-h"):
        at += 2 if words[at] in _WITH_VALUE else 1
    return at


def _shell(words: Sequence[str], main: Callable[[Sequence[str]], int]) -> Shell:
    """Return what the options before the verb say. Raises Failure, ConfigurationError."""
    parser = ShellParser(prog="bkspark shell", allow_abbrev=False, add_help=False)
    parser.add_argument("-conf", "--conf", type=Path)
    parser.add_argument("--uri")
    parser.add_argument("-ledgeridformat", "--ledgeridformat", choices=("long", "hex", "uuid"), default="long")
    parser.add_argument("-entryformat", "--entryformat", choices=("string", "hex"), default="string")
    options = parser.parse_args(words)
    values = {} if options.conf is None else resolved(read(options.conf, "-conf")[0])
    return Shell(main, options.uri, options.conf, options.ledgeridformat, options.entryformat, values)


def print_help(verbs: Collection[Verb]) -> None:
    """Print all verbs with their options."""
    print(__doc__.split("\n\n")[1])
    width = max(len(verb.name) for verb in verbs)
    with contextlib.suppress(BrokenPipeError):
        for verb in verbs:
            print(f"  {verb.name.ljust(width)}  {_options(verb)}".rstrip())


def print_usage(verb: Verb) -> None:
    """Print the options of one verb, and the command that it runs."""
    print(f"bkspark shell {verb.name} {_options(verb)}".rstrip())
    print(f"the command of bkspark: {verb.equal}{f' ({verb.note})' if verb.note else ''}")


def _options(verb: Verb) -> str:
    return " ".join([*(f"[{option}]" for option in verb.options), verb.words]).strip()
