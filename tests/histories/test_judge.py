"""The judge takes correct histories, and names what is wrong with others. Needs Go; says so where there is none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.histories import judging, planted
from tests.histories.judging import JudgeMissing
from tests.histories.planted import Script


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        judging.find_go()
    except JudgeMissing as missing:
        pytest.skip(f"histories are not judged: {missing}")
    return judging.build(tmp_path_factory.mktemp("judge"))


@pytest.mark.parametrize("script", planted.CORRECT, ids=lambda script: script.__name__)
def test_a_history_that_a_correct_cluster_may_show_is_linearizable(
    judge: Path, tmp_path: Path, script: Callable[[Script], None]
) -> None:
    planted.write(tmp_path / "h", script)
    assert judging.judge(judge, tmp_path / "h").reasons == []


@pytest.mark.parametrize(("script", "complaint"), planted.DEFECTS, ids=lambda it: getattr(it, "__name__", ""))
def test_a_planted_defect_is_found_and_explained(
    judge: Path, tmp_path: Path, script: Callable[[Script], None], complaint: str
) -> None:
    planted.write(tmp_path / "h", script)
    verdict = judging.judge(judge, tmp_path / "h", pictures=tmp_path)
    assert not verdict.is_linearizable
    (reason,) = verdict.reasons
    assert complaint in reason
    # The operation that is impossible, those before it, and a page to look at.
    assert any(line.startswith("  ->  ") for line in verdict.lines())
    assert len(list(tmp_path.glob("*.html"))) == 1


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (["-limit", "0.2"], "no order was found or excluded in 200ms"),
        (["-total", "0"], "the time for all ledgers and logs was over before its turn"),
        (["-memory", "1"], "no order was found or excluded in 1 MiB"),
    ],
)
def test_a_history_that_is_too_hard_gets_the_verdict_unknown_when_time_or_memory_is_over(
    judge: Path, tmp_path: Path, limits: list[str], why: str
) -> None:
    planted.write(tmp_path / "h", planted.undecidable)
    verdict = judging.judge(judge, tmp_path / "h", limits=limits)
    assert not verdict.is_linearizable
    assert verdict.lines()[-1] == "UNKNOWN"
    (reason,) = verdict.reasons
    assert reason.startswith(f"log {planted.LOG}: {why}")


def test_ledgers_are_judged_apart_from_each_other(judge: Path, tmp_path: Path) -> None:
    planted.write(tmp_path / "one", planted.quiet_ledger)
    planted.write(tmp_path / "other", planted.two_ends)
    other = [json.loads(line) | {"ledger": 8} for line in (tmp_path / "other").read_text().splitlines()[1:]]
    both = (tmp_path / "one").read_text() + "".join(json.dumps(line) + "\n" for line in other)
    (tmp_path / "both").write_text(both)
    verdict = judging.judge(judge, tmp_path / "both")
    assert verdict.facts["ledgers"] == 2
    assert [reason.partition(":")[0] for reason in verdict.reasons] == ["ledger 8"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: unexpected end of JSON input"),
        ('{"op":"append","client":"a","call":1,"return":2,"result":"ok"}', "it must name either a ledger or a log"),
        ('{"op":"grow","client":"a","ledger":1,"call":1,"return":2,"result":"ok"}', 'op "grow" is unknown'),
        ('{"op":"lac","client":"a","ledger":1,"call":1,"return":2,"result":"unknown"}', "is not one of ok, failed"),
        ('{"op":"lac","client":"a","ledger":1,"call":3,"return":2,"result":"ok"}', "return is missing or before call"),
        ('{"op":"lac","ledger":1,"call":1,"return":2,"result":"ok"}', "client is missing"),
        (
            '{"op":"append","client":"a","ledger":1,"call":1,"return":2,"result":"ok","first":0,"values":["x"]}',
            'value "x" is not BYTES:DIGEST',
        ),
        ('{"op":"close","client":"a","ledger":1,"call":1,"return":2,"result":"ok"}', "last_entry is missing"),
        ('{"op":"lac","client":"a","ledger":1,"call":1,"return":2,"result":"ok","lac":null}', "lac is missing"),
        ('{"op":"open","client":"a","log":"l","call":1,"return":2,"result":"ok"}', "writer is missing"),
        (
            '{"op":"append","client":"a","ledger":1,"call":1,"return":null,"result":"unknown","values":[]}',
            "first is missing",
        ),
        ('{"op":"read","client":"a","ledger":1,"call":1,"return":2,"result":"denied"}', "entry is missing"),
        (
            '{"op":"sync","client":"a","log":"l","call":1,"return":2,"result":"ok","last_entry":3}',
            "sync is of ledgers",
        ),
        (
            '{"op":"read","client":"a","ledger":1,"call":1,"return":2,"result":"ok","relaxed":true}',
            "relaxed is of appends to ledgers",
        ),
        (
            '{"op":"truncate","client":"a","log":"l","call":1,"return":2,"result":"ok"}',
            "at is missing",
        ),
    ],
)
def test_a_file_that_is_not_a_history_is_refused_with_line_and_reason(
    judge: Path, tmp_path: Path, line: str, complaint: str
) -> None:
    (tmp_path / "h").write_text('{"history":1}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2: ") as refused:
        judging.judge(judge, tmp_path / "h")
    assert complaint in str(refused.value)


def test_a_history_of_another_version_is_refused(judge: Path, tmp_path: Path) -> None:
    (tmp_path / "h").write_text('{"history":2}\n')
    with pytest.raises(ValueError, match="header of a history of version 1"):
        judging.judge(judge, tmp_path / "h")


def test_the_judge_is_formatted_and_vetted(judge: Path) -> None:
    for command in (["gofmt", "-l", "."], ["go", "vet", "."]):
        done = subprocess.run(command, cwd=judging.SOURCE, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_missing_go_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JudgeMissing, match=rf"install Go {judging.go_needed()} or newer"):
        judging.find_go()
