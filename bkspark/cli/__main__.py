"""The `bkspark` command: reads the command line, runs one command, turns failures into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 the command line or a configured value is wrong. A traceback is a bug of ours.
Command modules import what they need when they run, so that `bkspark --help` loads neither Arrow nor ZooKeeper.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import cast

from bkspark.cli import bench, bookie, cluster, console, cookies, demo, dump, ledger, local, log, shell, top
from bkspark.cli.arguments import USAGE, Commands, Parser
from bkspark.cli.interruption import Interruption
from bkspark.command_line import UnwritableText, discard_stdout, name_errors_of_stdout
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.extras import explain
from bkspark.version import VERSION

FAILED = 1
OPEN_FILES_MAX = 65_536
"""Each bookie takes a connection, and a cluster may have more bookies than the usual limit, 1,024."""


def build_parser() -> Parser:
    """Return the parser of the whole command line; `arguments.run(arguments)` is the chosen command."""
    parser = Parser(prog="bkspark", description="Apache BookKeeper for Spark and Python.")
    parser.add_argument("--version", action="version", version=f"bkspark {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in (demo, local, bookie, ledger, log, cluster, cookies, console, dump, bench, top):
        module.add_parser(commands)
    shell.add_parser(cast(Commands, commands), main)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` excludes the program's name."""
    _allow_open_files()
    name_errors_of_stdout()
    with Interruption() as interruption:
        try:
            arguments = build_parser().parse_args(argv)
            code = arguments.run(arguments)
            sys.stdout.flush()
            return int(code or 0)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else FAILED
        except ConfigurationError as error:
            return _fail(error, USAGE)
        except BookKeeperError as error:
            return _fail(error, FAILED)
        except KeyboardInterrupt:
            return _fail("interrupted", FAILED)
        except BrokenPipeError:
            # The reader of our output has left (`| head`). Python would complain again when it flushes at exit.
            discard_stdout()
            return FAILED
        except OSError as error:
            try:
                sys.stdout.flush()
            except OSError:
                # Python would complain again when it flushes at exit.
                discard_stdout()
            return _fail(_describe(error), FAILED)
        except UnwritableText as error:
            return _fail(error, FAILED)
        except ModuleNotFoundError as missing:
            if reason := explain(missing):
                return _fail(reason, FAILED)
            raise
        except Exception:
            # C code that the signal found in an import turns KeyboardInterrupt into an error of its own.
            if interruption.happened:
                return _fail("interrupted", FAILED)
            raise


def _allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may, up to `OPEN_FILES_MAX`."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if most == resource.RLIM_INFINITY else min(most, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _fail(reason: object, code: int) -> int:
    print(f"bkspark: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


def _describe(error: OSError) -> str:
    names = " and ".join(repr(str(name)) for name in (error.filename, error.filename2) if name is not None)
    reason = error.strerror or str(error) or type(error).__name__
    return f"{names}: {reason}" if names else reason


if __name__ == "__main__":
    raise SystemExit(main())
