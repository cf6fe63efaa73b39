"""The `bkspark` command: reads the command line, runs one command, turns failures into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 the command line or a configured value is wrong. A traceback is a bug of ours.
Command modules import what they need when they run, so that `bkspark --help` loads neither Arrow nor ZooKeeper.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from bkspark.cli import bench, bookie, cluster, demo, dump, ledger, local, log
from bkspark.cli.arguments import USAGE, Parser
from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.version import VERSION

FAILED = 1
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def build_parser() -> Parser:
    """Return the parser of the whole command line; `arguments.run(arguments)` is the chosen command."""
    parser = Parser(prog="bkspark", description="Apache BookKeeper for Spark and Python.")
    parser.add_argument("--version", action="version", version=f"bkspark {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in (demo, local, bookie, ledger, log, cluster, dump, bench):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` excludes the program's name."""
    with _Interruption() as interruption:
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
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except OSError as error:
            return _fail(_describe(error), FAILED)
        except Exception:
            # C code that the signal found in an import turns KeyboardInterrupt into an error of its own.
            if interruption.happened:
                return _fail("interrupted", FAILED)
            raise


def _fail(reason: object, code: int) -> int:
    print(f"bkspark: {' '.join(str(reason).split())}", file=sys.stderr)
    return code


def _describe(error: OSError) -> str:
    names = " and ".join(repr(str(name)) for name in (error.filename, error.filename2) if name is not None)
    reason = error.strerror or str(error) or type(error).__name__
    return f"{names}: {reason}" if names else reason


class _Interruption:
    """While entered, the first ending signal raises KeyboardInterrupt and the later ones do nothing.

    A second Ctrl-C must not interrupt the clean-up that the first one began; that is bounded in time everywhere.
    """

    def __init__(self) -> None:
        self.happened = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Interruption:
        # Python lets only the main thread set handlers; a caller in another one keeps its own.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._interrupt) for number in _ENDING_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.happened:
            self.happened = True
            raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
