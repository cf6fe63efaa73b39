"""Kills at named stages (`bkspark.stages`): an order lies in a folder, and who first reaches its stage carries it out.

    driver      Spark's driver and its JVM: SIGKILL. Its Python workers find out by themselves, later
    worker      this Python process: SIGKILL. In a task that is the executor's worker, else a planner or committer
    task        the task attempt: Spark is asked to kill it, and it waits for that
    bookie      one bookie: SIGKILL
    connection  this process's TCP connections to ZooKeeper: cut

An order is a file `STAGE.VICTIM`; it is renamed to `STAGE.VICTIM.done` by who takes it, before the kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

from pyspark import TaskContext

FOLDER, PORT = "BKSPARK_KILLS_FOLDER", "BKSPARK_KILLS_ZOOKEEPER"
"""Variables: the folder of orders, and ZooKeeper's port."""

TASK_STAGES = ("task.begun", "task.wrote", "task.closed", "source.read")
OTHER_STAGES = ("commit.begun", "commit.appended", "commit.published", "commit.done", "source.planned")
VICTIMS = ("driver", "worker", "task", "bookie", "connection")

PIDS = "driver.pids"
WAIT_S = 120.0


def orders() -> list[tuple[str, str]]:
    """Return every (stage, victim) that makes sense; a task is killed where a task runs."""
    return [
        (stage, victim)
        for stage in (*TASK_STAGES, *OTHER_STAGES)
        for victim in VICTIMS
        if victim != "task" or stage in TASK_STAGES
    ]


def reached(stage: str) -> None:
    """Carry out the order for this stage, if there is one."""
    folder = Path(os.environ[FOLDER])
    for order in folder.glob(f"{stage}.*"):
        victim = order.name.removeprefix(f"{stage}.")
        if victim in VICTIMS and _is_taken(order):
            _kill(victim, folder)


def _is_taken(order: Path) -> bool:
    try:
        order.rename(order.with_name(f"{order.name}.done"))
    except FileNotFoundError:
        return False  # another process was faster
    return True


def _kill(victim: str, folder: Path) -> None:
    if victim == "driver":
        for pid in (folder / PIDS).read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    elif victim == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif victim == "task":
        _wait_to_be_killed(folder)
    elif victim == "bookie":
        os.kill(int((folder / "bookie.pid").read_text()), signal.SIGKILL)
    else:
        cut_connections(int(os.environ[PORT]))


def _wait_to_be_killed(folder: Path) -> None:
    context = TaskContext.get()
    assert context is not None, "a task is killed where a task runs"
    asked = folder / f"asked.{context.taskAttemptId()}"
    asked.with_suffix(".tmp").touch()
    asked.with_suffix(".tmp").rename(asked)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        time.sleep(0.01)
    raise AssertionError("Spark did not kill the task")


def cut_connections(port: int) -> None:
    """Shut down this process's TCP connections to a port, as a router that fails would."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET and connection.getpeername()[1] == port:
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # closed meanwhile, or not connected
