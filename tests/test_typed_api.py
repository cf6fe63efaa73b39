"""A type checker and `help` see the blocking API as users write it: wrong calls and options are found in a script."""

from __future__ import annotations

import concurrent.futures
import inspect
import os
import pydoc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark import blocking, client, log
from bkspark.entries import EntryBatch
from bkspark.log.positions import LogBatch, Position

ROOT = Path(__file__).parent.parent

SCRIPT = """\
import concurrent.futures
from collections.abc import Iterator

from bkspark import client as aio
from bkspark.blocking import Client, LedgerReader, LedgerWriter, NetOptions, PlacementOptions, WriterOptions
from bkspark.blocking import RelaxedDurability
from bkspark.entries import EntryBatch
from bkspark.log.positions import Position

with Client("zk://h:2181/ledgers", writer=WriterOptions(close_timeout_s=5.0), net=NetOptions()) as client:
    writer: LedgerWriter = client.create(ensemble=3, relaxed=RelaxedDurability(striped=True))
    entry: int = writer.append(b"one")
    future: concurrent.futures.Future[int] = writer.submit([b"two"])
    last: int = writer.last_entry
    reader: LedgerReader = client.open(writer.ledger_id, recover=True)
    batches: Iterator[EntryBatch] = reader.batches(0, batch_bytes=1)
    position: Position = client.log("clicks").open_for_writing(roll_bytes=1).append(b"three")
    writer.append("text")  # wrong
    writer.apend(b"")  # wrong
    client.create(ensemble="3")  # wrong
    reader.batches(bytes_max=1)  # wrong
    text: str = writer.append(b"")  # wrong
    name: str = writer.last_entry  # wrong
    client.log("clicks").read(batch_bytes="1m")  # wrong

Client("zk://h:2181/ledgers", writer=WriterOptions(add_timeout=5.0))  # wrong
Client("zk://h:2181/ledgers", writer=WriterOptions(add_timeout_s="5"))  # wrong
Client("zk://h:2181/ledgers", limits=WriterOptions())  # wrong
Client("zk://h:2181/ledgers", writer=NetOptions())  # wrong
aio.Client("zk://h:2181/ledgers", writer=aio.WriterOptions(add_timeout_s=5.0), placement=PlacementOptions())
aio.Client("zk://h:2181/ledgers", writer=aio.WriterOptions(lag=1))  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_finds_exactly_the_wrong_calls_and_options_of_a_users_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # With the settings and the cache of `make typecheck`, which takes half a minute less.
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(script)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    # From its cache mypy repeats an earlier run's errors, with the folder of that run.
    errors = (line.split(":") for line in found.stdout.splitlines() if ": error:" in line)
    lines = {int(number) for path, number, *_ in errors if Path(path).name == script.name}
    wrong = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}
    assert lines == wrong, found.stdout + found.stderr


RETURNS = {
    (blocking.Client, "create"): blocking.LedgerWriter,
    (blocking.Client, "open"): blocking.LedgerReader,
    (blocking.Client, "ledgers"): Iterator[int],
    (blocking.Client, "close"): None,
    (blocking.LedgerWriter, "append"): int,
    (blocking.LedgerWriter, "submit"): concurrent.futures.Future[int],
    (blocking.LedgerReader, "batches"): Iterator[EntryBatch],
    (blocking.Log, "open_for_writing"): blocking.LogWriter,
    (blocking.Log, "election"): blocking.Election,
    (blocking.Log, "register_consumer"): blocking.ConsumerRegistration,
    (blocking.Log, "read"): Iterator[LogBatch],
    (blocking.Log, "latest"): Position,
}


@pytest.mark.parametrize(("kind", "name"), RETURNS, ids=lambda it: getattr(it, "__name__", it))
def test_signature_says_what_the_call_returns_once_it_is_done(kind: type, name: str) -> None:
    call = getattr(kind, name)
    assert inspect.signature(call, eval_str=True).return_annotation == RETURNS[kind, name]
    assert not inspect.iscoroutinefunction(call)
    assert not inspect.isasyncgenfunction(call)


TWINS = {
    blocking.Client: client.Client,
    blocking.LedgerWriter: client.LedgerWriter,
    blocking.AdvancedLedgerWriter: client.AdvancedLedgerWriter,
    blocking.LedgerReader: client.LedgerReader,
    blocking.SnapshotReader: client.SnapshotReader,
    blocking.Log: log.Log,
    blocking.LogWriter: log.LogWriter,
    blocking.Election: log.Election,
    blocking.ConsumerRegistration: log.ConsumerRegistration,
}


@pytest.mark.parametrize("kind", TWINS)
def test_every_call_has_the_parameters_and_the_text_of_its_asyncio_twin(kind: type) -> None:
    names = [name for name in dir(kind) if not name.startswith("_") and name != "asynchronous"]
    assert names
    for name in names:
        blocked, original = (inspect.getattr_static(it, name) for it in (kind, TWINS[kind]))
        assert inspect.getdoc(blocked) or not inspect.getdoc(original), name
        if isinstance(original, property):
            assert isinstance(blocked, property)
            continue
        ours, theirs = (inspect.signature(it, eval_str=True).parameters for it in (blocked, original))
        assert list(ours.values()) == list(theirs.values()), name


def test_help_shows_plain_calls() -> None:
    text = pydoc.plain(pydoc.render_doc(blocking.LedgerReader))
    assert "batches(self, first_entry: int = 0, end_entry: int | None = None, *, batch_bytes: int = " in text
    assert "read(self, first_entry: int, last_entry: int, *, unconfirmed: bool = False) -> bkspark.entries" in text
    assert "Payload bytes up to `last_entry`" in text
    assert "coroutine" not in text
    assert "async " not in text


def test_options_of_a_client_come_from_the_client_modules() -> None:
    for module in (client, blocking):
        for name in ("NetOptions", "PlacementOptions", "RelaxedDurability", "WriterOptions"):
            assert name in module.__all__
            assert getattr(module, name) is getattr(client, name)
