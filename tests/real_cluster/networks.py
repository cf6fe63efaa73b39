"""Hosts for a cluster on one machine: network namespaces on a bridge, or else loopback addresses.

A namespace has its own address, routes and loopback interface. The bridge is in a namespace of its own, and nothing
connects it to the machine's network: packets between hosts stay in it. Files are shared by all hosts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tests.polling import wait_until

COMMAND_S = 30
"""Deadline of each command that changes the network."""
PREFIX = "bkspark"
"""Namespaces are called PREFIX-PID-NUMBER-HOST."""
SUBNET = "10.231.7"
RATE = "16mbit"
DELAY_MS = 20
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its name, its address, and its network namespace if it has one."""

    name: str
    address: str
    namespace: str = ""

    def command(self, *words: object) -> list[str]:
        """Return the command line that runs `words` on this host."""
        prefix = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*prefix, *map(str, words)]


class Network(Protocol):
    """Hosts by name, and what a test does to them. A context manager that removes all that it made."""

    description: str
    can_cut: bool
    hosts: dict[str, Host]

    def cut(self, host: Host) -> None:
        """Let no packet pass between this host and the others until `heal`; no connection is closed."""

    def heal(self, host: Host) -> None:
        """Let packets pass again."""

    def slow(self, host: Host) -> str:
        """Make the host's link slow until `restore`; return how."""

    def restore(self, host: Host) -> None:
        """Make the host's link fast again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def network(names: Sequence[str]) -> Network:
    """Return namespaces for these hosts, or else loopback addresses, whose `description` says why."""
    reason = _why_no_namespaces()
    return Namespaces(names) if reason is None else Loopbacks(names, reason)


class Namespaces:
    """Each host is a network namespace, connected to a bridge by a pair of virtual Ethernet interfaces."""

    can_cut = True

    def __init__(self, names: Sequence[str]) -> None:
        self.description = f"{len(names)} network namespaces with addresses {SUBNET}.1 to {SUBNET}.{len(names)}"
        prefix = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{prefix}-switch"
        self.hosts = {
            name: Host(name, f"{SUBNET}.{number}", f"{prefix}-{name}") for number, name in enumerate(names, start=1)
        }

    def __enter__(self) -> Self:
        remove_abandoned()
        try:
            _ip("netns", "add", self._switch)
            self._on_switch("link", "add", "bridge", "type", "bridge")
            self._on_switch("link", "set", "bridge", "up")
            for host in self.hosts.values():
                self._connect(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _connect(self, host: Host) -> None:
        name = host.namespace
        _ip("netns", "add", name)
        self._on_switch("link", "add", _port(host), "type", "veth", "peer", "name", "eth0", "netns", name)
        self._on_switch("link", "set", _port(host), "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{host.address}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            _ip("-n", name, "link", "set", interface, "up")

    def _remove(self) -> None:
        for name in (*(host.namespace for host in self.hosts.values()), self._switch):
            _remove_namespace(name)

    def cut(self, host: Host) -> None:
        self._on_switch("link", "set", _port(host), "nomaster")

    def heal(self, host: Host) -> None:
        self._on_switch("link", "set", _port(host), "master", "bridge")

    def slow(self, host: Host) -> str:
        """Delay packets where the kernel can (netem); else limit the rate, so that they queue (tbf)."""
        ways = {
            f"tc netem: a delay of {DELAY_MS} ms each way, {RATE}": f"netem delay {DELAY_MS}ms rate {RATE}",
            f"tc tbf: {RATE} each way, up to 50 ms in the queue; this kernel has no netem": (
                f"tbf rate {RATE} burst 16kb latency 50ms"
            ),
        }
        for way, discipline in ways.items():
            words = ["root", *discipline.split()]
            done = _tc("-n", self._switch, "qdisc", "add", "dev", _port(host), *words, check=False)
            if done.returncode == 0:
                _tc("-n", host.namespace, "qdisc", "add", "dev", "eth0", *words)
                return way
        raise AssertionError(f"tc can neither delay packets nor limit their rate: {done.stderr}")

    def restore(self, host: Host) -> None:
        _tc("-n", self._switch, "qdisc", "del", "dev", _port(host), "root")
        _tc("-n", host.namespace, "qdisc", "del", "dev", "eth0", "root")

    def _on_switch(self, *words: str) -> None:
        _ip("-n", self._switch, *words)


class Loopbacks:
    """Each host is an address of the machine's loopback interface. No link can be cut or slowed."""

    can_cut = False

    def __init__(self, names: Sequence[str], reason: str) -> None:
        self.description = f"{len(names)} loopback addresses, because network namespaces are unavailable: {reason}"
        self.hosts = {name: Host(name, f"127.0.7.{number}") for number, name in enumerate(names, start=1)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cut(self, host: Host) -> None:
        raise AssertionError(f"{host.name} cannot be cut off: it is a loopback address")

    def heal(self, host: Host) -> None:
        pass

    def slow(self, host: Host) -> str:
        raise AssertionError(f"{host.name} cannot be made slow: it is a loopback address")

    def restore(self, host: Host) -> None:
        pass


def remove_abandoned() -> None:
    """Remove the namespaces of test processes that were killed before they could."""
    for name in _listed():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-\d+-\w+", name)
        if found and not Path("/proc", found[1]).exists():
            _remove_namespace(name)


def own_namespaces(pid: int | None = None) -> list[str]:
    """Return the namespaces that a process, by default this one, has made and not removed."""
    return [name for name in _listed() if name.startswith(f"{PREFIX}-{pid or os.getpid()}-")]


def _port(host: Host) -> str:
    """Return the interface of a host on the bridge."""
    return f"to-{host.name}"


def _listed() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").stdout.splitlines() if line]


def _remove_namespace(name: str) -> None:
    """End the processes in a namespace, each by its id, and remove it; nothing happens if it does not exist."""
    if name not in _listed():
        return
    wait_until(lambda: not _killed(name), f"the processes in {name} to end", COMMAND_S)
    _ip("netns", "delete", name)


def _killed(name: str) -> list[int]:
    found = _processes(name)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def _processes(name: str) -> list[int]:
    done = _ip("netns", "pids", name, check=False)
    return [int(word) for word in done.stdout.split() if _is_running(int(word))]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _why_no_namespaces() -> str | None:
    """Return why this process cannot make network namespaces with a bridge; None if it can."""
    name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}-attempt"
    try:
        with _made(name):
            _ip("-n", name, "link", "add", "bridge", "type", "bridge")
            _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
    except FileNotFoundError:
        return "there is no command `ip` (package iproute2)"
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip() or str(error)
    return None


@contextlib.contextmanager
def _made(name: str) -> Iterator[None]:
    _ip("netns", "add", name)
    try:
        yield
    finally:
        _ip("netns", "delete", name)


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _run("ip", *words, check=check)


def _tc(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _run("tc", *words, check=check)


def _run(*words: str, check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if check and done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
        error.add_note(done.stderr)
        raise error
    return done
