"""Builds both images from their Dockerfiles, and runs them as docs/operations.md and docs/deployment.md do.

    python -m tests.deployment.images [--certificates FILE]

It needs root, the registry of Python's packages, Debian's archive, and Debian's packages buildah, mmdebstrap and
util-linux, but no container engine: what an image starts is process 1 of a PID namespace, in the image's root, with
the user and variables of the image, on the host's network. `--certificates` names the authorities of a network that has
its own. Debian comes from `mmdebstrap`, whose smallest variant is larger than the image `debian:bookworm-slim`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bkspark.blocking import Client
from bkspark.cli.child_process import ChildProcess
from bkspark.cli.ports import free_ports
from bkspark.cli.zookeeper_process import ZooKeeperProcess
from tests.polling import wait_until
from tests.real_cluster.deployment_page import WITH_ARCHIVE, blocks
from tests.real_cluster.machines import MASTER_MAIN, WORKER_MAIN

ROOT = Path(__file__).parents[2]
RELEASE = "bookworm"
BOOKIES = 3
ENTRIES = 1000
START_S = 120
STOP_S = 30
JOB_S = 300
CERTIFICATES = "/var/certificates.pem"

# The arguments are the root, a folder and where it appears, and a command. The host does not see what is mounted here.
_INSIDE = """
set -e
root=$1 folder=$2 place=$3
shift 3
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /etc/hosts "$root/etc/hosts"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$folder" "$root$place"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was built, and where its files are."""

    root: Path
    user: str
    variables: tuple[str, ...]
    entry_point: tuple[str, ...]

    @property
    def mib(self) -> float:
        """Return the size of its files."""
        found = subprocess.run(["du", "--summarize", "--bytes", self.root], check=True, capture_output=True, text=True)
        return int(found.stdout.split()[0]) / (1 << 20)

    def started(
        self, name: str, words: Sequence[str], folder: Path, place: str, variables: Sequence[str] = ()
    ) -> ChildProcess:
        """Run the entry point with these arguments; `folder` is at `place` inside, and belongs to the image's user."""
        os.chown(folder, int(self.user), 0)
        inside = self._as_user([*self.entry_point, *words], variables)
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _INSIDE, "sh"]
        return ChildProcess(
            name, [*command, str(self.root), str(folder), place, *inside], folder.parent / f"{name}.log"
        )

    def also(self, process: ChildProcess, words: Sequence[str], variables: Sequence[str] = ()) -> str:
        """Run a command beside process 1, as `docker exec` does; return what it prints.

        Raises:
            AssertionError: its exit code is not 0.
        """
        inside = self._as_user(words, variables)
        command = ["nsenter", "--target", str(first(process)), "--mount", "--pid", "--wd=/", *inside]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
        return done.stdout

    def _as_user(self, words: Sequence[str], variables: Sequence[str]) -> list[str]:
        return ["chroot", f"--userspec={self.user}:0", str(self.root), "env", "-i", *self.variables, *variables, *words]


def first(process: ChildProcess) -> int:
    """Return the host's id of process 1 inside."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


# ---- building ----


def build(folder: Path, name: str, *options: str, context: Path) -> None:
    with (folder / f"{name}.txt").open("wb") as log:
        command = ["buildah", "bud", "--isolation", "chroot", "--network", "host", *options, "--tag", tag(folder, name)]
        done = subprocess.run([*command, str(context)], stdout=log, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, f"{name} cannot be built: {(folder / f'{name}.txt').read_text()[-4000:]}"


def tag(folder: Path, name: str) -> str:
    return f"localhost/{folder.name}-{name}".lower()


def build_debian(folder: Path, certificates: Path | None) -> None:
    """Build the image that both Dockerfiles begin with."""
    context = folder / "debian"
    context.mkdir()
    command = ["mmdebstrap", "--variant=minbase", RELEASE, str(context / "debian.tar")]
    subprocess.run(command, check=True, capture_output=True)
    lines = ["FROM scratch", "ADD debian.tar /"]
    if certificates is not None:
        shutil.copy(certificates, context / "certificates.pem")
        lines += [f"COPY certificates.pem {CERTIFICATES}", f"ENV PIP_CERT={CERTIFICATES}"]
    (context / "Dockerfile").write_text("\n".join(lines))
    build(folder, "debian", context=context)


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[Image]:
    """Mount the files of an image that was built."""
    facts = json.loads(_output("buildah", "inspect", "--type", "image", tag(folder, name)))["OCIv1"]["config"]
    container = _output("buildah", "from", tag(folder, name))
    try:
        root = Path(_output("buildah", "mount", container))
        yield Image(root, facts.get("User", "0"), tuple(facts["Env"]), tuple(facts.get("Entrypoint", ())))
    finally:
        subprocess.run(["buildah", "rm", container], check=False, capture_output=True)


@contextlib.contextmanager
def removed_at_the_end(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Remove those of these images that were built, in this order, also when the next one cannot be built."""
    try:
        yield
    finally:
        for name in names:
            subprocess.run(["buildah", "rmi", tag(folder, name)], check=False, capture_output=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


# ---- running ----


@contextlib.contextmanager
def bookies(image: Image, folder: Path, zookeeper: ZooKeeperProcess) -> Iterator[str]:
    """Run three bookies and autorecovery; yield the cluster's URI. All stop in order at the end."""
    common = [f"BK_zkServers={zookeeper.connect_string}", "BK_advertisedAddress=127.0.0.1", "BK_allowLoopback=true"]
    running: list[ChildProcess] = []
    try:
        for number, port in enumerate(free_ports(BOOKIES)):
            data = folder / f"bookie{number}"
            data.mkdir()
            variables = [*common, f"BK_bookiePort={port}"]
            running.append(image.started(f"bookie-{number}", ["bookie"], data, "/data/bookkeeper", variables))
            _wait_for_line(running[-1], "serves")
            image.also(running[-1], [*image.entry_point, "healthy"], variables)
        data = folder / "autorecovery"
        data.mkdir()
        running.append(image.started("autorecovery", ["autorecovery"], data, "/data/bookkeeper", common))
        _wait_for_line(running[-1], "runs")
        print(image.also(running[0], [*image.entry_point, "cluster", "health"], common).strip(), flush=True)
        yield f"zk://{zookeeper.connect_string}/ledgers"
        for process in running:
            # What `docker stop` sends. The process that waits outside ends with the same exit code.
            os.kill(first(process), signal.SIGTERM)
            assert process.wait(STOP_S), f"{process.name} does not stop"
            assert process.exit_code == 0, f"{process.name} {process.ending()}: {process.last_log_line()}"
    finally:
        for process in running:
            process.kill()


def _wait_for_line(process: ChildProcess, text: str) -> None:
    """Return once it has printed a line with this text: `cluster init` has printed before."""
    lines = process.lines(time.monotonic() + START_S)
    assert any(text in line for line in lines), f"{process.name} {process.ending()}: {process.last_log_line()}"


def write_and_read(uri: str) -> None:
    with Client(uri) as client:
        with client.create(ensemble=BOOKIES, write_quorum=BOOKIES, ack_quorum=2) as ledger:
            ledger.append_many([b"%d" % number for number in range(ENTRIES)])
        read = client.open(ledger.ledger_id).read(0, ENTRIES - 1)
        assert [int(read[number]) for number in range(ENTRIES)] == list(range(ENTRIES))


def run_job(image: Image, folder: Path, uri: str) -> str:
    """Run the job of docs/deployment.md on a master and a worker of the image; return what it prints."""
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    place = {name: folder / name for name in ("master", "worker", "driver")}
    for each in place.values():
        each.mkdir()
    (place["driver"] / "job.py").write_text(blocks(WITH_ARCHIVE, "python")[0])
    local = ["SPARK_LOCAL_IP=127.0.0.1"]
    daemons: list[ChildProcess] = []
    try:
        words = [MASTER_MAIN, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        daemons.append(image.started("master", words, place["master"], "/work", local))
        _wait_for_text(daemons[-1], "I have been elected leader")
        words = [WORKER_MAIN, "--webui-port", "0", "--cores", "2", "--memory", "2g", master]
        daemons.append(image.started("worker", words, place["worker"], "/work", local))
        _wait_for_text(daemons[-1], "Successfully registered with master")
        # The driver and the worker share a folder for the checkpoint, as the page asks.
        (place["worker"] / "checkpoint").mkdir()
        os.chown(place["worker"] / "checkpoint", int(image.user), 0)
        shutil.copy(place["driver"] / "job.py", place["worker"])
        job = ["/opt/spark/bin/spark-submit", "--master", master, "/work/job.py", uri, "/work/checkpoint"]
        return image.also(daemons[-1], job, local).strip()
    finally:
        for process in reversed(daemons):
            process.kill()


def _wait_for_text(process: ChildProcess, text: str) -> None:
    def has_logged() -> bool:
        logged = process.log_path.read_text(errors="replace")
        assert process.exit_code is None, f"{process.name} {process.ending()}: {logged[-4000:]}"
        assert " ERROR " not in logged, logged[-4000:]
        return text in logged

    wait_until(has_logged, f"{text!r} in {process.log_path}", START_S)


def main() -> int:
    """Build and run both images; print their sizes."""
    parser = argparse.ArgumentParser(prog="python -m tests.deployment.images", description=__doc__.split("\n")[0])
    parser.add_argument("--certificates", type=Path, metavar="FILE", help="more authorities for pip, as PEM")
    certificates = parser.parse_args().certificates
    if missing := [name for name in ("buildah", "mmdebstrap", "unshare", "nsenter") if shutil.which(name) is None]:
        parser.error(
            f"no {', '.join(missing)} on the PATH: Debian's packages buildah, mmdebstrap and util-linux have them"
        )
    with (
        tempfile.TemporaryDirectory(prefix="bkspark-images-") as temporary,
        removed_at_the_end(folder := Path(temporary), ["spark", "bookie", "debian"]),
    ):
        # Processes of the images' users pass through it.
        folder.chmod(0o711)
        build_debian(folder, certificates)
        base = ("--build-arg", f"BASE={tag(folder, 'debian')}")
        build(folder, "bookie", *base, "--file", str(ROOT / "deploy" / "Dockerfile"), context=ROOT)
        build(folder, "spark", *base, "--file", str(ROOT / "deploy" / "spark.Dockerfile"), context=ROOT)
        (port,) = free_ports(1)
        with (
            opened(folder, "debian") as debian,
            opened(folder, "bookie") as bookie,
            opened(folder, "spark") as spark,
        ):
            for name, image in (("bookie", bookie), ("spark", spark)):
                print(f"{name}: {image.mib:.0f} MiB, of which Debian has {debian.mib:.0f}", flush=True)
            with (
                ZooKeeperProcess(folder / "zookeeper", port=port) as zookeeper,
                bookies(bookie, folder, zookeeper) as uri,
            ):
                write_and_read(uri)
                print(f"three bookies: {ENTRIES} entries were written and read", flush=True)
                counted = run_job(spark, folder, uri)
                print(f"the job on the image of Spark: {counted}", flush=True)
                assert counted == "1000 1000"
    return 0


if __name__ == "__main__":
    sys.exit(main())
