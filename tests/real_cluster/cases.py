"""What happens to a real cluster while Spark reads and writes. After each, every row is there exactly once."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bkspark.cli.child_process import ChildProcess
from tests.polling import wait_until
from tests.real_cluster.job import Steps
from tests.real_cluster.machines import BOOKIES, WORKERS, Machines

CASE_S = 420
"""Deadline of a driver."""
LOST_S = 240


@dataclass
class Driver:
    """A driver that runs: what it says, and the files that synchronise it with the test."""

    process: ChildProcess
    folder: Path
    said: list[dict[str, Any]] = field(default_factory=list)

    @property
    def steps(self) -> Steps:
        return Steps(self.folder)

    def until(self, **facts: object) -> None:
        """Return once it has said these facts."""
        for line in self.process.lines(time.monotonic() + CASE_S):
            self.said.append(json.loads(line))
            if self.said[-1] == facts:
                return
        raise AssertionError(f"the driver ended before it said {facts}: {self._log()}")

    def wait_for_tasks(self, step: str) -> list[str]:
        """Return the addresses of tasks of a step that wait, once there are any."""
        return wait_until(lambda: self.steps.held(step), f"tasks of {step} to wait", LOST_S)

    def finish(self) -> list[dict[str, Any]]:
        """Wait for its end; return what it said.

        Raises:
            AssertionError: it failed; its log's end is the message.
        """
        self.said += [json.loads(line) for line in self.process.lines(time.monotonic() + CASE_S)]
        assert self.process.wait(CASE_S), f"the driver does not end: {self._log()}"
        assert self.process.exit_code == 0, self._log()
        return self.said

    def _log(self) -> str:
        return self.process.log_path.read_text(errors="replace")[-6000:]


@contextlib.contextmanager
def driver(machines: Machines, folder: Path, case: str, **settings: str) -> Iterator[Driver]:
    """Run a case of `job` on the host `client`; it is ended when the block ends."""
    folder.mkdir()
    given = {"uri": machines.uri, "settings": machines.settings() | settings}
    (folder / "job.json").write_text(json.dumps(given))
    words = [sys.executable, "-m", "tests.real_cluster.job", case, folder]
    with machines.start(words, folder / "driver.log") as process:
        yield Driver(process, folder)


def batch_and_streams(machines: Machines, folder: Path) -> str:
    """All workers write and read."""
    with driver(machines, folder, "batch,streams") as running:
        said = running.finish()
    addresses = {machines.host(name).address for name in WORKERS}
    for step in ("write", "read.*"):
        assert {address for _, _, address in running.steps.begun(step)} == addresses
    return f"{sum(fact['rows'] for fact in said)} rows read"


def slow_link(machines: Machines, folder: Path) -> str:
    """One worker has a slow link."""
    host = machines.host("worker3")
    how = machines.network.slow(host)
    try:
        batch_and_streams(machines, folder)
    finally:
        machines.network.restore(host)
    return how


def killed_worker(machines: Machines, folder: Path) -> str:
    """A worker loses its power, with its executor and its tasks, in a write and in a stream; it comes back."""

    def restart(name: str) -> None:
        machines.launch_worker(name)
        machines.wait_for(name, "Successfully registered with master")

    return _interrupted(machines, folder, machines.kill, restart)


def cut_off_worker(machines: Machines, folder: Path) -> str:
    """No packet reaches a worker, whose tasks run on, until another executor has done its work."""
    return _interrupted(machines, folder, *_cut_and_heal(machines))


def cut_off_bookie(machines: Machines, folder: Path) -> str:
    """No packet reaches a bookie that stores what tasks write."""
    cut, heal = _cut_and_heal(machines)
    return _interrupted(machines, folder, cut, heal, victim=BOOKIES[0])


def _cut_and_heal(machines: Machines) -> tuple[Callable[[str], None], Callable[[str], None]]:
    return (
        lambda name: machines.network.cut(machines.host(name)),
        lambda name: machines.network.heal(machines.host(name)),
    )


def _interrupted(
    machines: Machines,
    folder: Path,
    strike: Callable[[str], None],
    heal: Callable[[str], None],
    victim: str | None = None,
) -> str:
    """Strike while tasks have written half of their rows; without `victim`, at the worker of one of them."""
    victims = []
    with driver(machines, folder, "interrupted") as running:
        for step, then in (("write", "stream-may-begin"), ("stream", "stream-may-end")):
            held = running.wait_for_tasks(step)
            struck = victim or next(name for name in WORKERS if machines.host(name).address == held[0])
            strike(struck)
            victims.append(struck)
            running.steps.let_go(step)
            running.until(finished=step)
            heal(struck)
            running.steps.let_go(then)
        running.finish()
    return ", ".join(victims)


def speculation(machines: Machines, folder: Path) -> str:
    """A slow task gets a second attempt; both write."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with driver(machines, folder, "speculation", **settings) as running:
        running.finish()
    second = [partition for step in ("write", "stream") for partition, n, _ in running.steps.begun(step) if n > 0]
    return f"{len(second)} second attempts"


def dynamic_allocation(machines: Machines, folder: Path) -> str:
    """Executors come with the tasks and go when they are idle."""
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "3",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.executor.cores": "2",
    }
    with driver(machines, folder, "allocation", **settings) as running:
        said = running.finish()
    return f"executors: {next(fact['executors'] for fact in said if 'executors' in fact)}, then 0, then more"


CASES = {
    case.__name__: case
    for case in (
        batch_and_streams,
        killed_worker,
        cut_off_worker,
        cut_off_bookie,
        slow_link,
        speculation,
        dynamic_allocation,
    )
}
NEED_CUTS = {"cut_off_worker", "cut_off_bookie", "slow_link"}
"""Cases that loopback addresses cannot have."""
