"""Python processes of the session that the tests share are forked from an interpreter with the imports done.

Each of Spark's Python workers, and the process of each stream, imports pyspark, Arrow, pandas and bkspark, about a
second of processor time, and the tests start hundreds. `warm_python` gives the path of a program that Spark starts in
place of Python (`python_launcher.py`): it asks a server to fork, and the new process runs the module that Spark named,
with the arguments, variables, folder and files that Spark gave it. Programs that tests start as users do, such as those
of docs/spark.md, have plain interpreters. Linux only; elsewhere Spark starts the plain interpreter.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import marshal
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from tests import quick_end

_LAUNCHER = Path(__file__).with_name("python_launcher.py")
_PACKAGES = ("pyspark.sql.worker", "bkspark.spark")
_MODULES = ("pyspark.worker", "pyspark.sql.streaming", "pyspark_bookkeeper", "pandas")
_ROOT = Path(__file__).parents[2]
_REQUEST_BYTES_MAX = 1 << 17
_FILES = 4
"""Standard input, output and errors, and a pipe that closes when the launcher ends."""
_HASH_SEED = {"PYTHONHASHSEED": "0"}
"""As spark-submit sets it, from which a session's JVM has it."""
_FOLLOWED = ("PYTHONPATH", "PYTHONUNBUFFERED")
"""Variables that an interpreter reads when it begins, and that a forked process follows nevertheless."""


@contextlib.contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Yield the path of a program that Spark may start in place of Python; `folder` holds it."""
    if sys.platform != "linux":
        yield sys.executable
        return
    launcher = folder / "python"
    launcher.write_text(f"#!{sys.executable} -IS\n{_LAUNCHER.read_text()}")
    launcher.chmod(0o755)
    command = [sys.executable, "-m", "tests.spark.warm_python", str(folder / "server")]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command, cwd=_ROOT, env=variables | _HASH_SEED, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.read(1), "the server of Python processes did not start"
        try:
            yield str(launcher)
        finally:
            server.stdin.close()


# ---- in the server ----


def _main(address: str) -> None:
    quick_end.prepare()
    own_path = sys.path[1:]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(128)
    # Requests wait until the imports are done; the JVM starts meanwhile.
    os.write(1, b"\n")
    _import()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Waited for, a process that has ended counts in what the tests cost.
    signal.signal(signal.SIGCHLD, _wait_for_ended)
    gc.collect()
    gc.freeze()
    found = _serve(listener)
    if found is not None:
        connection, data, files = found
        listener.close()
        _become(connection, data, files, own_path)


def _import() -> None:
    for package in map(importlib.import_module, _PACKAGES):
        for name in _modules_of(package):
            importlib.import_module(name)
    for name in _MODULES:
        importlib.import_module(name)


def _modules_of(package: ModuleType) -> Iterator[str]:
    return (module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))


def _serve(listener: socket.socket) -> tuple[socket.socket, bytes, list[int]] | None:
    """Fork a process for each request. Return twice: the request in the new process, None when the tests have ended."""
    while True:
        ready, _, _ = select.select([0, listener], [], [])
        if listener not in ready:
            return None
        connection, _ = listener.accept()
        data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, _FILES)
        if data and _fork() == 0:
            return connection, data, files
        connection.close()
        for descriptor in files:
            os.close(descriptor)


def _wait_for_ended(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _fork() -> int:
    with warnings.catch_warnings():
        # Python knows of Arrow's threads, which do nothing here.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(connection: socket.socket, data: bytes, files: list[int], own_path: list[str]) -> None:
    """Run the module that Spark named, as a process that Spark started would."""
    folder, arguments, variables = marshal.loads(data)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(files[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _end_with_launcher(files[3])
    # The workers that a daemon forks do not hold the launcher back, and their files are their own.
    os.register_at_fork(after_in_child=lambda: (connection.close(), os.close(files[3])))
    connection.send(b"%d" % os.getpid())
    _take_variables(variables)
    os.chdir(folder)
    sys.path[:] = [folder, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *own_path]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.argv[:] = ["-m", *arguments[1:]]
    # `runpy` warns of a program that was imported before.
    sys.modules.pop(arguments[0], None)
    quick_end.run_module(arguments[0])


def _end_with_launcher(life: int) -> None:
    """Let the kernel end this process when no process holds the other end of the pipe: SIGIO ends it by default."""
    os.set_inheritable(life, False)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        os._exit(1)


def _take_variables(variables: dict[str, str]) -> None:
    own, asked = map(_read_at_the_beginning, (os.environ, variables))
    if own != asked:
        raise SystemExit(f"an interpreter with {asked} was asked for, and this one has {own}")
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()


def _read_at_the_beginning(variables: Mapping[str, str]) -> dict[str, str]:
    # Those that begin with PYTHON_ are Spark's.
    names = {name for name in variables if name.startswith("PYTHON") and not name.startswith("PYTHON_")}
    return {name: variables[name] for name in names - set(_FOLLOWED)}


if __name__ == "__main__":
    _main(sys.argv[1])
