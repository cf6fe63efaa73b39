"""Spark and bookies on hosts of their own, under kills, cuts, slow links, speculation and dynamic allocation.

    python -m tests.real_cluster [CASE ...]

It needs root for network namespaces; without them it uses loopback addresses, says so, and leaves out the cases that
cut or slow a link. The exit code is 1 when a case fails.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.real_cluster.cases import CASES, NEED_CUTS
from tests.real_cluster.machines import HOSTS, Machines
from tests.real_cluster.networks import Loopbacks, network


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_cluster", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"one of {', '.join(CASES)} (default: all)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep files and logs there")
    parser.add_argument("--loopback", action="store_true", help="use loopback addresses even where namespaces work")
    options = parser.parse_args(arguments)
    if wrong := set(options.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(wrong))}; there are {', '.join(CASES)}")
    # What was made is removed, too, when the command is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="bkspark-real-cluster-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        hosts = Loopbacks(HOSTS, "--loopback was given") if options.loopback else network(HOSTS)
        with Machines(folder, hosts) as machines:
            print(machines.network.description, flush=True)
            results = [run(name, machines, folder) for name in options.cases or CASES]
    return 0 if all(results) else 1


def run(name: str, machines: Machines, folder: Path) -> bool:
    """Run one case, print its result, and return whether it passed or was left out."""
    if name in NEED_CUTS and not machines.network.can_cut:
        print(f"{name}: left out, it needs network namespaces", flush=True)
        return True
    began = time.monotonic()
    try:
        found = CASES[name](machines, folder / name)
    except Exception:
        traceback.print_exc()
        print(f"{name}: FAILED after {time.monotonic() - began:.0f} s", flush=True)
        return False
    print(f"{name}: every row exactly once ({found}), {time.monotonic() - began:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
