"""`python -m tests.mutation.worker`: runs tests in a copy of the tree, each job in a process forked from this one.

The working directory is the copy. Jobs are JSON lines on stdin, one answer each on stdout; the end of stdin ends the
worker:

    {"change": {"path", "text"} | null, "tests": [[test, seconds], ...], "record": path | null, "markers": text}
    {"outcome", "test", "detail", "seconds", "passed"}

`change` replaces one file for the time of the job. `tests` (or whole files) are run in that order until one fails;
`seconds` is how long each may take. With `record` the tests of one file are run under coverage, and what each executed
is written to that path; `markers` chooses some of them, as pytest's option -m.
`outcome` is `passed`, `failed` (a test, or importing one), `timeout`, `crashed` (the process ended in the middle) or
`flooded` (more than `DISK_BYTES_MAX` of files, or `MEMORY_BYTES_MAX` of memory).

The parent has imported the libraries, and nothing of the product: a child imports the changed modules as any process
would, so that what is computed at import is right, too. Whatever a job leaves (processes, files) is gone before its
answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.mutation.recording import Recorder

START_S = 120.0
"""Importing and collecting tests; also the end of a run, when fixtures of the session end."""
DISK_BYTES_MAX = 4 << 30
MEMORY_BYTES_MAX = 4 << 30
"""Resident memory of all processes of a job; a limit of the kernel's would count what is reserved and not used, too."""
_PASSED = (str(int(pytest.ExitCode.OK)), str(int(pytest.ExitCode.NO_TESTS_COLLECTED)))
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

Job = dict[str, Any]
Answer = dict[str, Any]


def main() -> int:
    # A process that a test leaves running becomes a child of this process, and is ended by it.
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _import_libraries()
    try:
        for line in sys.stdin:
            print(json.dumps(_run(json.loads(line))), flush=True)
    except (EOFError, BrokenPipeError):
        # The parent was killed, so no other process removes the copy.
        room = Path.cwd().parent
        os.chdir("/")
        shutil.rmtree(room, ignore_errors=True)
        with contextlib.suppress(OSError):
            room.parent.rmdir()
    return 0


def _import_libraries() -> None:
    import crc32c  # noqa: F401
    import google.protobuf.message  # noqa: F401
    import kazoo.client  # noqa: F401
    import msgpack  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
    import rocksdict  # noqa: F401


def _run(job: Job) -> Answer:
    began = time.monotonic()
    room = Path(tempfile.mkdtemp(prefix="job-"))
    try:
        with _changed(job["change"]):
            answer = _Child(job, room).run()
    finally:
        shutil.rmtree(room, ignore_errors=True)
    answer["seconds"] = round(time.monotonic() - began, 3)
    return answer


@contextlib.contextmanager
def _changed(change: dict[str, str] | None) -> Iterator[None]:
    if change is None:
        yield
        return
    path = Path(change["path"])
    original = path.read_bytes()
    try:
        path.write_bytes(change["text"].encode())
        _forget_bytecode(path)
        yield
    finally:
        path.write_bytes(original)
        _forget_bytecode(path)


def _forget_bytecode(path: Path) -> None:
    """Stale bytecode is recognised by second and size, which a mutant may share with its original."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


class _Child:
    """The forked process of one job, and what it tells through a pipe: a JSON list a line."""

    def __init__(self, job: Job, room: Path) -> None:
        self._room = room
        self._limits = {test: float(seconds) for test, seconds in job["tests"]}
        self._test: str | None = None
        self._passed = 0
        self._start_s = sum(self._limits.values()) if job["record"] else START_S
        self._deadline = time.monotonic() + self._start_s
        self._unread = b""
        self._pipe, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._pipe)
            _be_the_child(job, room, writing)
        os.close(writing)

    def run(self) -> Answer:
        try:
            return self._watch()
        finally:
            os.close(self._pipe)
            _end_descendants()

    def _watch(self) -> Answer:
        looked = time.monotonic()
        while True:
            now = time.monotonic()
            if now > self._deadline:
                return self._answer("timeout", f"after {self._limits.get(self._test or '', self._start_s):.0f} s")
            if now > looked + _LOOK_S:
                looked = now
                if _bytes_below(self._room) > DISK_BYTES_MAX:
                    return self._answer("flooded", f"more than {DISK_BYTES_MAX >> 30} GiB of files")
                if _resident_bytes() > MEMORY_BYTES_MAX:
                    return self._answer("flooded", f"more than {MEMORY_BYTES_MAX >> 30} GiB of memory")
            readable, _, _ = select.select([self._pipe, sys.stdin], [], [], min(_LOOK_S, self._deadline - now))
            if sys.stdin in readable:
                raise EOFError("the process that wants the answer is gone")
            if not readable:
                continue
            data = os.read(self._pipe, 1 << 16)
            if not data:
                return self._answer("crashed", "the process of the tests ended in the middle")
            self._unread += data
            *lines, self._unread = self._unread.split(b"\n")
            for line in lines:
                if answer := self._heard(json.loads(line)):
                    return answer

    def _heard(self, event: list[str]) -> Answer | None:
        kind, test, detail = event
        if kind == "start":
            self._test = test
            self._deadline = time.monotonic() + self._limits.get(test, START_S)
        elif kind == "passed":
            self._test = None
            self._passed += 1
            self._deadline = time.monotonic() + START_S
        elif kind == "failed":
            self._test = test
            return self._answer("failed", detail)
        elif kind == "end":
            self._test = None
            # Tests of an old recording may be gone: then there is nothing to run.
            return self._answer("passed" if detail in _PASSED else "failed", f"pytest ended with {detail}")
        return None

    def _answer(self, outcome: str, detail: str) -> Answer:
        return {"outcome": outcome, "test": self._test, "detail": detail[:300], "passed": self._passed}


def _be_the_child(job: Job, room: Path, pipe: int) -> NoReturn:
    code = 1
    try:
        tree = Path.cwd()
        os.setsid()
        # Only what the worker's own end leaves: while it lives it ends its children itself.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(room / "output", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for name in ("tmp", "run", "base"):
            (room / name).mkdir()
        os.environ["TMPDIR"] = str(room / "tmp")
        tempfile.tempdir = None
        os.chdir(room / "run")
        code = _test(job, tree, room, pipe)
    except BaseException as error:
        _tell(pipe, "failed", "", f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _test(job: Job, tree: Path, room: Path, pipe: int) -> int:
    wanted = [test for test, _ in job["tests"]]
    recorder = Recorder(tree) if job["record"] else None
    files = list(dict.fromkeys(test.partition("::")[0] for test in wanted))
    options = ["--rootdir", str(tree), "-c", str(tree / "setup.cfg"), "--basetemp", str(room / "base" / "pytest")]
    arguments = [*options, "-q", "-p", "no:cacheprovider", *(str(tree / file) for file in files)]
    plugins: list[object] = [recorder] if recorder else [_Chosen(wanted), _Teller(pipe)]
    more = ["-m", job["markers"]] if recorder else ["-x"]
    code = int(pytest.main([*arguments, *more], plugins=plugins))
    if recorder is not None:
        recorder.write(Path(job["record"]))
    _tell(pipe, "end", "", str(code))
    return code


class _Chosen:
    """Leaves the tests that are wanted, in the order in which they are wanted; a file means all of its tests."""

    def __init__(self, wanted: list[str]) -> None:
        self._rank = {test: rank for rank, test in enumerate(wanted)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        ranks = [self._rank.get(it.nodeid, self._rank.get(it.nodeid.partition("::")[0])) for it in items]
        chosen = [(rank, number) for number, rank in enumerate(ranks) if rank is not None]
        items[:] = [items[number] for _, number in sorted(chosen)]


class _Teller:
    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            _tell(self._pipe, "failed", "", f"{report.nodeid} cannot be collected: {_last_line(report)}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _tell(self._pipe, "start", nodeid, "")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            _tell(self._pipe, "failed", report.nodeid, _last_line(report))
        elif report.when == "teardown":
            _tell(self._pipe, "passed", report.nodeid, "")


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip().partition("\n")[0]


def _tell(pipe: int, kind: str, test: str, detail: str) -> None:
    os.write(pipe, json.dumps([kind, test, detail[:1000]]).encode() + b"\n")


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def _resident_bytes() -> int:
    """Return the memory of all processes below this one."""
    total = 0
    for pid in _descendants():
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    return total


def _end_descendants() -> None:
    """Kill all processes below this one, until there are none; orphans have become children of this one."""
    while descendants := _descendants():
        for pid in descendants:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


if __name__ == "__main__":
    sys.exit(main())
