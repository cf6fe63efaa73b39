"""Every kept input is taken or refused as its target says; and the machine itself finds what is planted."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing import engine
from tests.fuzzing.__main__ import ROOT
from tests.fuzzing.engine import REGRESSIONS, changed, corpus_of, regressions_of
from tests.fuzzing.target import BoundExceeded, Draw, Target
from tests.fuzzing.targets import TARGETS

RANDOM_INPUTS = 60
CORPUS_BYTES_MAX = 2_000_000

ATHERIS = engine.atheris_or_none()


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_and_changes_of_them_are_taken_or_refused_as_the_target_says(name: str) -> None:
    """`python -m tests.fuzzing` runs millions."""
    target, luck = TARGETS[name], random.Random(name)
    seeds = list(target.seeds())
    kept = [*seeds, *corpus_of(name)]
    assert kept
    for data in kept:
        target.execute(data)
    for _ in range(RANDOM_INPUTS):
        target.execute(changed(luck, luck.choice(kept), luck.choice(kept)))


@pytest.mark.parametrize("name", TARGETS)
def test_some_seed_of_every_target_is_accepted(name: str) -> None:
    """A target that refuses everything checks nothing."""
    accepted = [TARGETS[name].execute(data) for data in TARGETS[name].seeds()]
    assert any(accepted)


def test_page_has_every_target() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "fuzzing.md").read_text(), re.MULTILINE)
    assert sorted(name.strip("`") for row in rows for name in row.split(", ")) == sorted(TARGETS)


def test_kept_inputs_belong_to_targets_and_are_few() -> None:
    names = {path.stem for path in engine.CORPUS.glob("*.txt")} | {path.name for path in REGRESSIONS.iterdir()}
    assert names <= set(TARGETS)
    assert sum(path.stat().st_size for path in engine.CORPUS.iterdir()) < CORPUS_BYTES_MAX
    assert all(regressions_of(path.name) for path in REGRESSIONS.iterdir())


# ---- the machine ----


def _planted(data: bytes) -> None:
    """Four comparisons one inside the other: changes at random do not get through them, guided ones do."""
    if data[:1] == b"B" and data[1:2] == b"K" and data[2:3] == b"S" and len(data) > 3:
        raise IndexError("planted")


def _planted_hang(data: bytes) -> None:
    if data[:1] == b"h":
        sum(range(100_000_000))


def _planted_bomb(data: bytes) -> None:
    if data[:1] == b"b":
        bytearray(256 << 20).count(b"x")


@pytest.mark.skipif(ATHERIS is None, reason="atheris has no wheel for this Python")
def test_planted_defect_after_several_comparisons_is_found_by_coverage() -> None:
    assert ATHERIS is not None
    target = Target("planted", ATHERIS.instrument_func(_planted), seeds=lambda: [b"xxxx"])
    outcome = engine.run(target, ATHERIS, 1, seconds=60, executions=500_000)
    assert outcome.failure is not None
    assert "IndexError: planted" in outcome.failure
    assert outcome.failing_input is not None
    assert outcome.failing_input[:3] == b"BKS"
    assert 0 < outcome.executions < 500_000


def test_planted_defect_is_found_without_atheris_too() -> None:
    target = Target("planted", _planted, seeds=lambda: [b"BKS"])
    outcome = engine.run(target, None, 1, seconds=60, executions=5_000)
    assert outcome.failure is not None
    assert "IndexError: planted" in outcome.failure
    assert outcome.failing_input is not None
    with pytest.raises(IndexError):
        target.execute(outcome.failing_input)


def test_run_without_a_defect_counts_its_executions() -> None:
    target = Target("right", lambda data: None, seeds=lambda: [b"x"])
    outcome = engine.run(target, None, 1, seconds=60, executions=500)
    assert (outcome.failure, outcome.failing_input, outcome.executions) == (None, None, 500)


@pytest.mark.parametrize(("decode", "data"), [(_planted_hang, b"h"), (_planted_bomb, b"b")])
def test_input_that_takes_too_much_time_or_memory_is_a_failure(decode, data: bytes) -> None:  # type: ignore[no-untyped-def]
    target = Target("planted", decode, bytes_max=64 << 20)
    # Memory is measured by the process's peak. Forget the peak of other tests: none could be seen below it.
    Path("/proc/self/clear_refs").write_text("5")
    with pytest.raises(BoundExceeded):
        target.execute(data)


def test_error_that_is_not_allowed_is_a_failure_also_in_what_must_hold() -> None:
    def broken(_: bytes) -> None:
        raise ValueError("of the property, not of the decoder")

    assert not Target("refuses", int, (ValueError,)).execute(b"x")
    with pytest.raises(ValueError, match="of the property"):
        Target("broken", bytes, (ValueError,), broken).execute(b"x")


def test_draws_are_of_their_kind_for_any_bytes() -> None:
    luck = random.Random(1)
    for _ in range(300):
        draw = Draw(luck.randbytes(luck.randrange(40)))
        assert -(1 << 63) <= draw.int64() < 1 << 63
        assert 0 <= draw.entry_id() < (1 << 63) - 1
        assert 0 <= draw.below(7) < 7
        assert len(draw.octets(3)) == 3


@pytest.mark.long(reason="to import the instrumented product takes 12 s of processor time; .ci/run has the command run")
def test_command_prints_one_json_object(tmp_path: Path) -> None:
    """In a process of its own: libFuzzer ends with the exit handlers of whatever else this one has imported."""
    arguments = ["--target", "format-mark", "--executions", "2000", "--processes", "1", "--json"]
    command = [sys.executable, "-m", "tests.fuzzing", *arguments, "--findings", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["targets"].keys() == {"format-mark"}
    assert report["executions"] >= 2000
    assert report["failed"] == []
