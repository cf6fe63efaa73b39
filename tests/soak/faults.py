"""What happens to a cluster during a soak: one agenda of faults, and of what ends each of them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from bkspark.cli.child_process import ChildProcess
from bkspark.errors import BookKeeperError
from tests.soak import drivers, floods
from tests.soak.drivers import SparkDriver
from tests.soak.machines import FULL, Machines, SoakBookie
from tests.soak.sampling import Samples

PAUSE_S = 8.0
"""Between two faults, on average. Most last longer: several go on at once."""
KINDS = ("kill", "kill", "long kill", "stop", "pause", "zookeeper", "driver", "full disk", "flood", "flood")
"""All of them strike, in an order by chance, before one comes again. One that cannot strike now waits for its turn."""
FLOOD_S = 8.0
FLOOD_ENDS_S = 4.0
"""A flood has ended so long after its time."""
TICK_S = 0.1
HEAL_S = 120.0
START_AGAIN_S = 1.0
_BALLAST_PIECE = bytes(1 << 16)

Note = Callable[[str], None]


class Faults:
    """Strikes until it is stopped. The first bookie is never killed, so that its lines have no breaks; floods meet it.

    One bookie at a time is away; beside it another one may be full or flooded. All methods are called by one thread,
    which must be the one that started the bookies.
    """

    def __init__(
        self, machines: Machines, spark: list[SparkDriver], samples: Samples, folder: Path, random: Random
    ) -> None:
        self._kinds = [kind for kind in KINDS if spark or kind != "driver"]
        self.struck: dict[str, int] = dict.fromkeys(self._kinds, 0)
        self.flood_bytes: dict[str, int] = dict.fromkeys(floods.KINDS, 0)
        """What bookies took of each kind of flood."""
        self.ended_by_themselves: list[str] = []
        self._machines = machines
        self._spark = spark
        self._samples = samples
        self._folder = folder
        self._random = random
        self._numbers = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._away: SoakBookie | None = None
        self._down: set[SoakBookie] = set()
        """Those that are not expected to run."""
        self._is_full = False
        self._has_zookeeper = True
        self._flood: tuple[str, ChildProcess] | None = None
        self._flood_kinds = itertools.cycle(random.sample(sorted(floods.KINDS), len(floods.KINDS)))
        self._turn: list[str] = []
        """Kinds that have not struck yet since the turn began."""

    def strike_until(self, end_s: float, is_well: Callable[[], bool]) -> None:
        """Strike until `time.monotonic()` is `end_s`, or `is_well` says that there is no use in going on."""
        self._after(self._pause(), self._strike_next)
        while time.monotonic() < end_s and is_well():
            self._do_what_is_due()
            self._look_for_the_dead()
            time.sleep(TICK_S)

    def heal(self) -> None:
        """End every fault now; what cannot be ended within HEAL_S is a finding."""
        if not self._has_zookeeper:
            self._start_zookeeper()
        end_s = time.monotonic() + HEAL_S
        while self._agenda and time.monotonic() < end_s:
            due, self._agenda = self._agenda, []
            for _, _, act in sorted(due):
                if act not in (self._strike_next, self._start_zookeeper):
                    act()
            time.sleep(TICK_S)
        if self._agenda:
            self._found(f"{len(self._agenda)} faults could not be ended")
        self._end_flood()
        self._look_for_the_dead()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._numbers), act))

    def _do_what_is_due(self) -> None:
        while self._agenda and self._agenda[0][0] <= time.monotonic():
            heapq.heappop(self._agenda)[2]()

    def _pause(self) -> float:
        return PAUSE_S * self._random.uniform(0.3, 1.7)

    # ---- what must not happen ----

    def _look_for_the_dead(self) -> None:
        """Start again what ended without a fault; that it did is a finding."""
        for bookie in self._machines.bookies:
            if bookie not in self._down and not bookie.is_running:
                self._found(f"bookie {bookie.id} {bookie.ending()}: {_last_line(bookie.log)}")
                self._start(bookie)
        if self._has_zookeeper and self._machines.zookeeper.exit_code is not None:
            self._found("ZooKeeper ended")
            self._machines.zookeeper.start()
        for driver in self._spark:
            if not driver.is_running:
                if not driver.is_done:
                    self._found(f"{driver.name} ended: {driver.last_words()}")
                driver.kill()  # what it left of its session
                driver.start()

    def _found(self, text: str) -> None:
        if len(self.ended_by_themselves) < 100:
            self.ended_by_themselves.append(f"{time.strftime('%T')} {text}")
        self._samples.note(event="ended by itself", what=text[:300])

    # ---- faults ----

    def _strike_next(self) -> None:
        self._after(self._pause(), self._strike_next)
        if not self._turn:
            self._turn = self._random.sample(self._kinds, len(self._kinds))
        acts = {
            "kill": self._kill,
            "long kill": self._kill_for_long,
            "stop": self._stop,
            "pause": self._stand_still,
            "zookeeper": self._restart_zookeeper,
            "driver": self._kill_driver,
            "full disk": self._fill,
            "flood": self._start_flood,
        }
        for kind in self._turn:
            about = acts[kind]()
            if about is not None:
                self._turn.remove(kind)
                self.struck[kind] += 1
                self._samples.note(event=kind, what=about)
                return

    def _take(self) -> SoakBookie | None:
        """Return the bookie that is away from now on; None while another one is."""
        if self._away is None:
            self._away = self._random.choice(self._machines.bookies[1:])
            return self._away
        return None

    def _kill(self) -> str | None:
        return self._kill_for(self._random.uniform(0.0, 4.0))

    def _kill_for_long(self) -> str | None:
        """Long enough for autorecovery to copy what it held."""
        return self._kill_for(self._random.uniform(20.0, 45.0))

    def _kill_for(self, seconds: float) -> str | None:
        bookie = self._take()
        if bookie is None:
            return None
        self._down.add(bookie)
        bookie.kill()
        self._after(seconds, lambda: self._start(bookie))
        return f"{bookie.id} for {seconds:.0f} s"

    def _stop(self) -> str | None:
        bookie = self._take()
        if bookie is None:
            return None
        self._down.add(bookie)
        bookie.stop()
        self._after(self._random.uniform(0.0, 4.0), lambda: self._start(bookie))
        return bookie.id

    def _start(self, bookie: SoakBookie, settings: Mapping[str, str] | None = None) -> None:
        """Start a bookie again, later where there is no ZooKeeper now; any other reason not to start is a finding."""
        self._down.add(bookie)
        try:
            bookie.restart_with(settings or {})
        except BookKeeperError as error:
            if self._has_zookeeper:
                self._found(str(error))
            self._after(START_AGAIN_S, lambda: self._start(bookie, settings))
            return
        self._down.discard(bookie)
        if bookie is self._away:
            self._away = None

    def _stand_still(self) -> str | None:
        bookie = self._take()
        if bookie is None:
            return None
        seconds = self._random.choice((0.5, 3.0, 12.0))
        bookie.pause()
        self._after(seconds, lambda: self._go_on(bookie))
        return f"{bookie.id} for {seconds:.0f} s"

    def _go_on(self, bookie: SoakBookie) -> None:
        bookie.resume()
        self._away = None

    def _restart_zookeeper(self) -> str | None:
        if not self._has_zookeeper:
            return None
        self._has_zookeeper = False
        self._machines.zookeeper.kill()
        seconds = self._random.choice((0.0, 2.0, 8.0))
        self._after(seconds, self._start_zookeeper)
        return f"down for {seconds:.0f} s"

    def _start_zookeeper(self) -> None:
        self._machines.zookeeper.start()
        self._has_zookeeper = True

    def _kill_driver(self) -> str | None:
        if not self._spark:
            return None
        driver = self._random.choice(self._spark)
        driver.kill()
        driver.start()
        return driver.name

    def _fill(self) -> str | None:
        """Fill the small disk of the last bookie, or make it believe that its disks are full."""
        bookie = self._machines.bookies[-1]
        if self._is_full or self._away is bookie:
            return None
        self._is_full = True
        disk = self._machines.small_disk
        if disk is None:
            self._start(bookie, FULL)
            self._after(self._random.uniform(10.0, 30.0), lambda: self._empty_by_setting(bookie))
            return f"{bookie.id}, by diskUsageThreshold"
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(_BALLAST_PIECE)
        self._after(self._random.uniform(10.0, 30.0), lambda: self._empty(ballast))
        return f"{bookie.id}, one ledger directory of two"

    def _empty(self, ballast: Path) -> None:
        ballast.unlink()
        self._is_full = False

    def _empty_by_setting(self, bookie: SoakBookie) -> None:
        if bookie is not self._away:  # that one is started without these settings in any case
            self._start(bookie)
        self._is_full = False

    def _start_flood(self) -> str | None:
        bookie = self._random.choice(self._machines.bookies)
        if self._flood is not None or bookie is self._away:
            return None
        kind = next(self._flood_kinds)
        port = int(bookie.id.rpartition(":")[2])
        self._flood = (kind, drivers.flood(kind, port, FLOOD_S, self._folder / "floods.log"))
        self._after(FLOOD_S + FLOOD_ENDS_S, self._end_flood)
        return f"{kind} at {bookie.id}"

    def _end_flood(self) -> None:
        """End the flood and count what was taken of it: nothing, where its bookie was killed before it had begun."""
        if self._flood is not None:
            kind, process = self._flood
            if process.wait(FLOOD_S):
                self.flood_bytes[kind] += sum(map(int, process.lines()))
            process.stop(FLOOD_ENDS_S)
            self._flood = None


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1] if lines else "no log"
