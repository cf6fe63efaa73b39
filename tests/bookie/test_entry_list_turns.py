"""Lists of entries: one at a time, connections in turns, with pauses, and no place is lost whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.engine.entry_lists import STEP_S, EntryLists, StepReport
from bookie_service.engine.shares import ShareLimits
from tests.bookie.stepped_timers import SteppedTimers


class Machine(SteppedTimers):
    """A clock, timers, and a thread that runs one thing at a time, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.apart: list[tuple[Callable[[], StepReport], Callable[[StepReport], None]]] = []
        self.pauses: list[float] = []

    def run_apart(self, work: Callable[[], StepReport], then: Callable[[StepReport], None]) -> None:
        self.apart.append((work, then))

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        self.pauses.append(seconds)
        return super().call_later(seconds, callback)

    def step(self) -> bool:
        """Let the thread finish, or the next timer; return whether there was either."""
        assert len(self.apart) <= 1, "one list is built at a time"
        if self.apart:
            work, then = self.apart.pop()
            then(work())
        elif self.planned:
            self.call_next()
        else:
            return False
        return True

    def finish(self) -> None:
        while self.step():
            continue


class Client:
    """A connection."""

    is_open = True
    is_taking = True

    def __init__(self, machine: Machine, address: str = "a") -> None:
        self.machine = machine
        self.address = address
        self.gave_up: list[str] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        return self.machine.call_later(seconds, callback)

    def send(self, parts: object) -> None:
        raise AssertionError("lists are sent by themselves")

    def when_taking(self, callback: Callable[[], None]) -> None:
        raise AssertionError("lists do not wait for this")

    def give_up(self, why: str) -> None:
        self.gave_up.append(why)


class List:
    """A list whose steps take some time each, and may fail in one of them."""

    ledger_id = 7

    def __init__(self, bench: Bench, client: Client, name: str, *steps_s: float | Exception) -> None:
        self._bench = bench
        self.client = client
        self._name = name
        self._steps_s = steps_s
        self.refuses: Exception | None = None
        self.begins: Exception | None = None
        self.finishes: Exception | None = None
        self.is_refused_at_once = False

    def begin(self) -> Iterator[None] | None:
        self._bench.log.append(f"begin {self._name}")
        if self.begins is not None:
            raise self.begins
        return None if self.is_refused_at_once else self._steps()

    def _steps(self) -> Iterator[None]:
        for step_s in self._steps_s:
            if isinstance(step_s, Exception):
                raise step_s
            self._bench.machine.now_s += step_s
            yield

    def finish(self) -> None:
        if self.finishes is not None:
            raise self.finishes
        self._bench.log.append(f"finish {self._name}")

    def refuse(self, status: int) -> None:
        self._bench.log.append(f"refuse {self._name} {Status(status).name}")
        if self.refuses is not None:
            raise self.refuses


class Bench:
    """The lists of a bookie, and what became of them in order."""

    def __init__(self, places: int = 100) -> None:
        self.machine = Machine()
        self.log: list[str] = []
        self.status: Status | None = Status.EOK
        """Whether lists are allowed; None: the ledger must be looked up."""
        self.sought: list[Callable[[], None]] = []
        """What is called when the ledger is looked up."""
        limits = ShareLimits(places, places, places)
        self.lists = EntryLists(limits, self.machine.run_apart, self.machine.clock, self)

    def known_status_of(self, client: object, ledger_id: int) -> Status | None:
        assert ledger_id == List.ledger_id
        return self.status

    def find(self, client: object, ledger_ids: Sequence[int], on_found: Callable[[], None]) -> None:
        assert list(ledger_ids) == [List.ledger_id]
        self.sought.append(on_found)

    def find_out(self, status: Status | None) -> None:
        """Let the look-ups that are under way show whether lists are allowed."""
        self.status = status
        sought, self.sought = self.sought, []
        for on_found in sought:
            on_found()

    def client(self) -> Client:
        return Client(self.machine)

    def add(self, client: Client, name: str, *steps_s: float | Exception) -> List:
        made = List(self, client, name, *steps_s)
        assert self.lists.add(made)
        return made


def test_connections_take_turns_list_by_list() -> None:
    bench = Bench()
    one, other = bench.client(), bench.client()
    for name in ("a1", "a2", "a3"):
        bench.add(one, name)
    bench.add(other, "b1")
    bench.machine.finish()
    order = [each.removeprefix("begin ") for each in bench.log if each.startswith("begin")]
    assert order == ["a1", "a2", "b1", "a3"]
    assert bench.log == [f"{verb} {name}" for name in order for verb in ("begin", "finish")]
    assert len(bench.lists) == 0


def test_list_that_comes_when_nothing_is_left_is_built() -> None:
    bench = Bench()
    client = bench.client()
    for name in ("one", "two"):
        bench.add(client, name)
        bench.machine.finish()
    assert bench.log == ["begin one", "finish one", "begin two", "finish two"]


def test_step_is_about_a_millisecond_and_a_pause_four_times_as_long_follows_each() -> None:
    bench = Bench()
    bench.add(bench.client(), "a", *[STEP_S / 4] * 10)
    bench.machine.finish()
    assert bench.machine.pauses == [pytest.approx(4 * part) for part in (STEP_S, STEP_S, STEP_S / 2)]
    assert bench.log == ["begin a", "finish a"]


def test_steps_that_take_longer_pause_longer_and_others_wait_meanwhile() -> None:
    bench = Bench()
    bench.add(bench.client(), "a", 0.05)
    bench.add(bench.client(), "b", 0.05)
    while "begin b" not in bench.log:
        assert bench.machine.step()
    assert bench.machine.now_s == pytest.approx(0.05 * 5)


def test_places_are_limited_and_come_back_when_a_list_is_done() -> None:
    bench = Bench(places=2)
    client = bench.client()
    bench.add(client, "a")
    bench.add(client, "b")
    assert not bench.lists.add(List(bench, client, "c"))
    assert len(bench.lists) == 2
    bench.machine.finish()
    assert len(bench.lists) == 0
    bench.add(client, "d")
    assert "begin c" not in bench.log


def test_lists_of_closed_connections_are_dropped_and_their_places_come_back() -> None:
    bench = Bench()
    gone, there = bench.client(), bench.client()
    bench.add(gone, "a", 0.01, 0.01)
    for name in ("b", "c"):
        bench.add(gone, name)
    bench.add(there, "d")
    assert len(bench.lists) == 4
    assert bench.machine.step()
    gone.is_open = False
    bench.machine.finish()
    assert bench.log == ["begin a", "begin d", "finish d"]
    assert len(bench.lists) == 0


def test_list_is_not_sent_if_the_right_to_read_was_withdrawn_while_it_was_built() -> None:
    bench = Bench()
    client = bench.client()
    bench.add(client, "a", 2 * STEP_S, 2 * STEP_S)
    bench.add(client, "b")
    bench.machine.step()
    bench.status = Status.EUA
    bench.machine.finish()
    assert bench.log == ["begin a", "refuse a EUA", "refuse b EUA"]
    assert len(bench.lists) == 0


@pytest.mark.parametrize("is_built", [False, True], ids=["before it is built", "before it is sent"])
@pytest.mark.parametrize("status", [Status.EOK, Status.EUA, Status.EIO])
def test_others_go_on_while_it_is_not_known_whether_a_list_is_allowed(status: Status, *, is_built: bool) -> None:
    bench = Bench()
    one, other = bench.client(), bench.client()
    if is_built:
        bench.add(one, "a", STEP_S)
        bench.status = None
    else:
        bench.status = None
        bench.add(one, "a", STEP_S)
        bench.add(one, "b", STEP_S)
    bench.machine.finish()
    begun = ["begin a"] if is_built else []
    assert bench.log == begun
    assert bench.lists.clients() == [one] * (1 if is_built else 2)
    looked_up, bench.status, bench.sought = bench.sought, Status.EOK, []
    bench.add(other, "c", STEP_S)
    bench.machine.finish()
    assert bench.log == [*begun, "begin c", "finish c"]
    bench.sought = looked_up
    bench.find_out(None)
    assert len(bench.sought) == len(looked_up), "the rules changed again"
    bench.find_out(status)
    bench.machine.finish()
    if status != Status.EOK:
        expected = [f"refuse {name} {status.name}" for name in ("a" if is_built else "ab")]
    else:
        expected = ["finish a"] if is_built else ["begin a", "finish a", "begin b", "finish b"]
    assert bench.log == [*begun, "begin c", "finish c", *expected]
    assert (len(bench.lists), bench.lists.clients()) == (0, [])


def test_list_that_waited_for_a_look_up_is_the_next_one_of_its_connection() -> None:
    bench = Bench()
    client = bench.client()
    bench.status = None
    bench.add(client, "a", STEP_S)
    bench.status = Status.EOK
    for name in ("b", "c"):
        bench.add(client, name, STEP_S)
    while "begin b" not in bench.log:
        assert bench.machine.step()
    bench.find_out(Status.EOK)
    bench.machine.finish()
    assert [line for line in bench.log if line.startswith("begin")] == ["begin b", "begin a", "begin c"]


@pytest.mark.parametrize("is_built", [False, True], ids=["before it is built", "before it is sent"])
def test_list_whose_connection_closes_while_its_ledger_is_looked_up_is_dropped(*, is_built: bool) -> None:
    bench = Bench()
    client = bench.client()
    if not is_built:
        bench.status = None
    bench.add(client, "a", STEP_S)
    bench.status = None
    bench.machine.finish()
    client.is_open = False
    bench.find_out(Status.EOK)
    bench.machine.finish()
    assert bench.log == (["begin a"] if is_built else [])
    assert (len(bench.lists), bench.lists.clients()) == (0, [])


def test_list_that_cannot_be_sent_after_its_ledger_was_looked_up_is_answered_eio(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    client = bench.client()
    made = bench.add(client, "a", STEP_S)
    made.finishes = RuntimeError("a defect")
    bench.status = None
    bench.machine.finish()
    bench.find_out(Status.EOK)
    assert bench.log == ["begin a", "refuse a EIO"]
    assert "this is a defect of the bookie" in caplog.text
    assert (len(bench.lists), bench.lists.clients()) == (0, [])


@pytest.mark.parametrize("how", ["status", "at once", "raises"])
def test_list_that_is_refused_gives_way_to_the_next_one_a_turn_later(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    client = bench.client()
    bench.status = Status.EUA if how == "status" else Status.EOK
    first = List(bench, client, "a")
    first.is_refused_at_once = how == "at once"
    first.begins = RuntimeError("a defect") if how == "raises" else None
    assert bench.lists.add(first)
    bench.status = Status.EOK
    bench.add(client, "b")
    assert "begin b" not in bench.log
    assert len(bench.lists) == 1
    bench.machine.finish()
    refused = {"status": ["refuse a EUA"], "at once": ["begin a"], "raises": ["begin a", "refuse a EIO"]}[how]
    assert bench.log == [*refused, "begin b", "finish b"]
    assert ("this is a defect of the bookie" in caplog.text) == (how == "raises")
    assert len(bench.lists) == 0


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StorageDamaged("the index is damaged"), "the index is damaged"),
        (OSError("the disk fails"), "the disk fails"),
        (RuntimeError("a defect"), "this is a defect of the bookie"),
    ],
)
def test_list_that_fails_in_the_middle_is_answered_eio_and_the_next_one_is_built(
    error: Exception, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    client = bench.client()
    bench.add(client, "a", 0.01, error)
    bench.add(client, "b")
    bench.machine.finish()
    assert bench.log == ["begin a", "refuse a EIO", "begin b", "finish b"]
    assert line in caplog.text
    assert ("a defect of the bookie" in caplog.text) == isinstance(error, RuntimeError)
    assert client.gave_up == []
    assert len(bench.lists) == 0


def test_connection_whose_list_cannot_even_be_refused_is_closed() -> None:
    bench = Bench()
    client = bench.client()
    made = bench.add(client, "a", RuntimeError("a defect"))
    made.refuses = RuntimeError("another one")
    bench.machine.finish()
    assert client.gave_up == ["one of its requests failed, and cannot be refused"]
    assert len(bench.lists) == 0


def test_lists_that_are_built_and_that_wait_are_those_of_their_connections() -> None:
    bench = Bench()
    first, second = bench.client(), bench.client()
    assert bench.lists.clients() == []
    bench.add(first, "a", 0.01)
    assert bench.lists.clients() == [first]
    bench.add(second, "b", 0.01)
    assert set(bench.lists.clients()) == {first, second}
    while "finish a" not in bench.log:
        assert bench.machine.step()
    assert set(bench.lists.clients()) == {second}
    bench.machine.finish()
    assert bench.lists.clients() == []
