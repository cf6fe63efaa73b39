"""Processes of the product that tests start come from an interpreter that has imported the product before.

A bookie's imports take two thirds of a second of processor time, and the tests start more than a thousand processes.
After `install`, `subprocess` forks `python -m bookie_service ...` and the like from a server, which did the imports
once. The new process is a child of the test's process as usual, with the arguments, variables, files, limits, signals
and process group that it was given. What cannot be had this way starts as usual: another folder, other variables that
an interpreter reads when it begins, and programs named by `-c`. `cold` makes all start as usual: a test needs that
when it reads what /proc says of the arguments or variables. Linux only; elsewhere all start as usual.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bkspark.parent_death import die_with_parent
from tests import quick_end

_PROGRAMS = (
    "bkspark.cli",
    "bkspark.cli.__main__",
    "bookie_service",
    "bookie_service.admin.dump",
    "bookie_service.replication",
)
_REPLACEMENTS = ("bkspark_console", "bookie_service", "bookie_service.admin.dump", "bookie_service.replication")
"""Programs that a command of `bkspark` lets replace its process: they run in it instead."""
_IMPORTED = (
    "bkspark.blocking",
    "bkspark.cli.__main__",
    "bkspark.cli.shell_bookie_verbs",
    "bkspark.cli.shell_cluster_verbs",
    "bkspark.client",
    "bkspark.metadata.zookeeper",
    "bookie_service.admin.dump",
    "bookie_service.admin.http.server",
    "bookie_service.admin.repair_commands",
    "bookie_service.process",
)
"""Arrow is not among them: it starts threads, which a fork would not have."""
_READ_AT_THE_BEGINNING = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "MALLOC_", "OMP_", "OPENBLAS_")
"""How variables begin that an interpreter or its libraries read before the program runs."""
_ROOT = Path(__file__).parents[1]
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES_MAX = 1 << 20
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class _Request:
    """A process to be made. Its standard files travel beside it."""

    parent: int
    command: list[str]
    variables: dict[str, str]
    umask: int
    limits: list[tuple[int, int]]
    ignored: list[int]
    blocked: list[int]
    process_group: int
    dies_with_parent: bool


# ---- in the test's process ----


class _Client:
    """Asks the server, which it starts when it is first needed. A fork of this process starts one of its own."""

    def __init__(self) -> None:
        self.is_cold = False
        self.variables: dict[str, str] = {}
        """Those of the server."""
        self._lock = threading.Lock()
        self._pid = 0
        """The process that started the server."""
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def can_start(self, command: list[str], variables: Mapping[str, str]) -> bool:
        """Return whether the server makes the same process as a start would."""
        if self.is_cold or command[:2] != [sys.executable, "-m"] or command[2:3] == [] or command[2] not in _PROGRAMS:
            return False
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
        return read_at_the_beginning(variables) == read_at_the_beginning(self.variables)

    def _begin(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        command = [sys.executable, "-m", "tests.warm_starts"]
        with theirs:
            self._server = subprocess.Popen(
                command, cwd=_ROOT, env=self.variables, stdin=theirs, stdout=subprocess.DEVNULL
            )
        ours.settimeout(_START_S)
        self._socket, self._pid = ours, os.getpid()

    def start(self, request: _Request, files: list[int]) -> int:
        """Return the id of the new process."""
        assert self._socket is not None
        data = json.dumps(asdict(request)).encode()
        with self._lock:
            # The server forks twice: this process adopts the orphan.
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [data], files)
                return int(self._socket.recv(100))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def read_at_the_beginning(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that an interpreter reads when it begins."""
    return {name: value for name, value in variables.items() if name.startswith(_READ_AT_THE_BEGINNING)}


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


_client = _Client()
_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def install() -> None:
    """Let `subprocess` start the product's programs so, from now on."""
    if sys.platform == "linux":
        _client.variables = dict(os.environ)
        subprocess.Popen._execute_child = _start  # type: ignore[attr-defined]


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """While inside, all processes start as usual."""
    before, _client.is_cold = _client.is_cold, True
    try:
        yield
    finally:
        _client.is_cold = before


def _start(self: Any, *arguments: Any) -> None:
    """Do what `Popen._execute_child` does."""
    named = inspect.signature(_execute_child).bind(self, *arguments).arguments
    if not _is_plain(named):
        return _execute_child(self, *arguments)
    command, env = list(map(os.fspath, named["args"])), named["env"]
    variables = dict(os.environ if env is None else env)
    if not _client.can_start(command, variables):
        return _execute_child(self, *arguments)
    pipes = [named[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    request = _Request(
        os.getpid(),
        command,
        variables,
        named["umask"] if named["umask"] >= 0 else _umask(),
        [resource.getrlimit(limit) for limit in _LIMITS],
        [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        -1 if named["process_group"] is None else named["process_group"],
        named["preexec_fn"] is not None,
    )
    self.pid = _client.start(request, [own if own != -1 else number for number, own in enumerate(pipes)])
    self._child_created = True
    self._close_pipe_fds(
        *(named[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
    )
    return None


def _is_plain(named: dict[str, Any]) -> bool:
    """Return whether a start asks for nothing that the server does not know."""
    tie = named["preexec_fn"]
    return (
        isinstance(named["args"], (list, tuple))
        and all(isinstance(word, str) for word in named["args"])
        and named["executable"] in (None, named["args"][0])
        and (tie is None or tie.__qualname__.startswith(f"{die_with_parent.__qualname__}."))
        and all(named[name] is None for name in ("gid", "gids", "uid"))
        and named["close_fds"]
        and not named["pass_fds"]
        and not named["shell"]
        and not named["start_new_session"]
        and os.path.realpath(named["cwd"] or os.getcwd()) == str(_ROOT)
    )


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


# ---- in the server ----


def _serve(requests: socket.socket) -> tuple[_Request, list[int]] | None:
    """Fork a process for each request. Return twice: the request in the new process, None when the tests have ended."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not data:
            return None
        request = _Request(**json.loads(data))
        between = _fork()
        if between == 0:
            if _fork() == 0:
                return request, files
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in files:
            os.close(descriptor)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python knows of numpy's threads, which do nothing here.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(requests: socket.socket, request: _Request, files: list[int]) -> None:
    """Make this process the one that a start would have made, up to its first line, and answer the request."""
    while os.getppid() != request.parent:
        time.sleep(0.0002)
    if request.process_group >= 0:
        os.setpgid(0, request.process_group)
    if request.dies_with_parent and (tie := die_with_parent(request.parent)) is not None:
        tie()
    os.umask(request.umask)
    for limit, values in zip(_LIMITS, request.limits):
        if tuple(values) != resource.getrlimit(limit):
            resource.setrlimit(limit, tuple(values))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    # Its parent may send signals to it and its group from now on.
    requests.send(b"%d" % os.getpid())
    requests.close()
    _take_files(files)
    # Where no variable says the language, the interpreter sets this one when it begins.
    own = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}
    os.environ.clear()
    os.environ.update({**own, **request.variables})


def _take_files(files: list[int]) -> None:
    # Above all three first: one of them may have the number of another one's place.
    for number, descriptor in enumerate([os.dup(each) for each in files]):
        os.dup2(descriptor, number)
    os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
    # Python's own objects stay: they name the files by these numbers.
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _run(command: Sequence[str]) -> None:
    sys.orig_argv[:] = command
    sys.argv[:] = ["-m", *command[3:]]
    quick_end.run_module(command[2])


def _run_instead_of_replacing() -> None:
    """Let the next `os.execv` run its program in this process. A bookie that restarts itself is replaced."""
    replace = os.execv

    def run(program: str, command: Sequence[str]) -> None:
        os.execv = replace
        if list(command[:2]) != [sys.executable, "-m"] or command[2] not in _REPLACEMENTS:
            replace(program, command)
        _run(command)
        raise SystemExit(0)

    os.execv = run  # type: ignore[assignment]


def _main() -> None:
    quick_end.prepare()
    for name in _IMPORTED:
        __import__(name)
    # `runpy` warns of a program that was imported before.
    for name, module in list(sys.modules.items()):
        if name.endswith(".__main__") or (name in _PROGRAMS and not hasattr(module, "__path__")):
            del sys.modules[name]
    # A Ctrl-C is for the tests, which end this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=0)
    found = _serve(requests)
    if found is not None:
        request, files = found
        _become(requests, request, files)
        if request.command[2].startswith("bkspark.cli"):
            _run_instead_of_replacing()
        _run(request.command)


if __name__ == "__main__":
    _main()
