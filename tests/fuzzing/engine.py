"""Runs targets: with atheris (libFuzzer, guided by coverage) where it is installed, else with random inputs.

Each run of a target is a process forked from one that has imported everything: libFuzzer ends the process that it runs
in. What an input did wrong is a file with its bytes and the error.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import importlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.fuzzing.target import INPUT_BYTES_MAX, Target

FOLDER = Path(__file__).parent
CORPUS, REGRESSIONS = FOLDER / "corpus", FOLDER / "regressions"
RSS_MIB_MAX = 2048
HANG_S = 20
"""An input that takes so long is ended from outside; `Target.seconds_max` is what a target allows."""
INSTRUMENTED = ("bkspark", "bookie_service", "google.protobuf.text_format")
"""Packages that tell what of them is executed; of protobuf the text format is written in Python."""
_PR_SET_PDEATHSIG = 1
_EXECUTIONS = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(rb"cov: (\d+) ft: (\d+) corp: (\d+)")


def atheris_or_none() -> ModuleType | None:
    """Return atheris, or None where there is no build of it: its wheels are for Linux and Python 3.11 to 3.13."""
    try:
        return importlib.import_module("atheris")
    except ImportError:
        return None


def import_targets(atheris: ModuleType | None) -> dict[str, Target]:
    """Import all targets; with atheris the product is instrumented so that it tells what was executed."""
    with contextlib.ExitStack() as stack:
        if atheris is not None:
            stack.enter_context(_silent())
            stack.enter_context(atheris.instrument_imports(include=list(INSTRUMENTED)))
        from tests.fuzzing.targets import TARGETS
    return TARGETS


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """atheris prints a line for each module."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def die_with_parent() -> None:
    """Let the kernel end this process when its parent dies; libFuzzer does not check its parent. Linux alone can do
    that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# ---- the corpus ----


def corpus_of(name: str) -> list[bytes]:
    """Return the inputs that the repository keeps for a target: those of its corpus, and what once went wrong."""
    path = CORPUS / f"{name}.txt"
    kept = [base64.b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [*kept, *regressions_of(name).values()]


def regressions_of(name: str) -> dict[str, bytes]:
    """Return inputs that a target once failed on, by what they are."""
    return {path.stem: path.read_bytes() for path in sorted((REGRESSIONS / name).glob("*.bin"))}


def write_corpus(name: str, inputs: list[bytes]) -> None:
    """Keep inputs as a target's corpus: a line of base64 each, the shortest first."""
    CORPUS.mkdir(exist_ok=True)
    lines = [base64.b64encode(data).decode() for data in sorted(set(inputs), key=lambda it: (len(it), it))]
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


# ---- one run ----


@dataclass(frozen=True)
class Outcome:
    """What a run of one target came to. `failure`: the error, None where everything was right."""

    target: str
    executions: int
    seconds: float
    covered: int
    failure: str | None
    failing_input: bytes | None
    corpus: list[bytes]
    """With `keeps_corpus`: inputs that each reached something new, and what the run began with."""


def run(
    target: Target,
    atheris: ModuleType | None,
    seed: int,
    *,
    seconds: float,
    executions: int = 0,
    keeps_corpus: bool = False,
) -> Outcome:
    """Run a target in a process of its own for a time or, with `executions` above 0, so many inputs if that ends first.

    The corpus is what the repository keeps, and the target's seeds. Call it where the targets have been imported.
    """
    began = time.monotonic()
    room = Path(tempfile.mkdtemp(prefix="bkspark-fuzzing-"))
    try:
        for folder in ("corpus", "found"):
            (room / folder).mkdir()
        for number, data in enumerate({*target.seeds(), *corpus_of(target.name)}):
            (room / "corpus" / f"{number:06}").write_bytes(data)
        (room / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        code = _forked(room, lambda: _fuzz(target, atheris, room, seed, seconds, executions))
        log = (room / "log").read_bytes()
        failing = next(iter(sorted((room / "found").iterdir())), None)
        failure = None
        if code or failing is not None:
            failure = (room / "error").read_text() if (room / "error").exists() else _last_lines(log)
        # libFuzzer adds an input to this folder when it reaches a new branch. (It can also choose the fewest that cover
        # as much, but starts itself again for that, which Python's cannot.)
        kept = [path.read_bytes() for path in sorted((room / "corpus").iterdir())] if keeps_corpus and atheris else []
        return Outcome(
            target.name,
            _executed(room, log),
            round(time.monotonic() - began, 2),
            max((int(found[0]) for found in _COVERED.findall(log)), default=0),
            failure,
            failing.read_bytes() if failing is not None else None,
            kept,
        )
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _escaped(word: bytes) -> str:
    """Return a word as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{octet:02x}" for octet in word)


def _executed(room: Path, log: bytes) -> int:
    if (room / "executions").exists():
        return int((room / "executions").read_text())
    found = _EXECUTIONS.findall(log)
    # Without its last line libFuzzer was ended by an input; its lines begin with the number of inputs so far.
    counted = re.findall(rb"^#(\d+)", log, re.MULTILINE)
    return int(found[-1]) if found else int(counted[-1]) if counted else 0


def _last_lines(log: bytes) -> str:
    return "\n".join(log.decode("utf-8", "replace").splitlines()[-12:])


def _forked(room: Path, act: Callable[[], None]) -> int:
    """Run `act` in a child whose output goes to the file `log`; return its exit code, below 0 for a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            log = os.open(room / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["TMPDIR"] = str(room)
            act()
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _fuzz(target: Target, atheris: ModuleType | None, room: Path, seed: int, seconds: float, executions: int) -> None:
    def one_input(data: bytes) -> None:
        try:
            target.execute(data)
        except BaseException:
            (room / "error").write_text(traceback.format_exc())
            (room / "found" / "input").write_bytes(data)
            raise

    if atheris is None:
        count = _random_inputs(one_input, room, seed, seconds, executions)
        (room / "executions").write_text(str(count))
        return
    options = [
        f"-seed={seed % (1 << 31) or 1}",
        f"-max_total_time={max(1, round(seconds))}",
        f"-runs={executions or -1}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={RSS_MIB_MAX}",
        f"-artifact_prefix={room}/found/",
        "-print_final_stats=1",
        *([f"-dict={room}/words"] if target.words else []),
    ]
    atheris.Setup([target.name, *options, str(room / "corpus")], one_input)
    atheris.Fuzz()


def _random_inputs(one_input: Callable[[bytes], None], room: Path, seed: int, seconds: float, executions: int) -> int:
    """Change inputs of the corpus at random: nothing is learned from one for the next. Return how many there were."""
    resource.setrlimit(resource.RLIMIT_DATA, (RSS_MIB_MAX << 20, RSS_MIB_MAX << 20))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    luck = random.Random(seed)
    corpus = [path.read_bytes() for path in sorted((room / "corpus").iterdir())] or [b""]
    until, count = time.monotonic() + seconds, 0
    for data in corpus:
        one_input(data)
        count += 1
    while time.monotonic() < until and not (executions and count >= executions):
        signal.alarm(HANG_S)
        one_input(changed(luck, luck.choice(corpus), luck.choice(corpus)))
        count += 1
    return count


def changed(luck: random.Random, data: bytes, other: bytes) -> bytes:
    """Return an input with one to four random changes; `other` lends bytes."""
    octets = bytearray(data)
    for _ in range(luck.randint(1, 4)):
        at = luck.randint(0, len(octets))
        kind = luck.randrange(7)
        if kind == 0 and octets:
            octets[at % len(octets)] ^= 1 << luck.randrange(8)
        elif kind == 1 and octets:
            octets[at % len(octets)] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))
        elif kind == 2:
            octets[at:at] = luck.randbytes(luck.randint(1, 8))
        elif kind == 3:
            del octets[at : at + luck.randint(1, 8)]
        elif kind == 4:
            start = luck.randint(0, len(other))
            octets[at:at] = other[start : start + luck.randint(1, 32)]
        elif kind == 5:
            octets[at : at + 4] = luck.choice((0, 1, -1, 1 << 30, -(1 << 31), (1 << 31) - 1)).to_bytes(
                4, "big", signed=True
            )
        else:
            octets[at : at + 8] = luck.choice((-1, 1 << 62, -(1 << 63), (1 << 63) - 1)).to_bytes(8, "big", signed=True)
    return bytes(octets[:INPUT_BYTES_MAX])
