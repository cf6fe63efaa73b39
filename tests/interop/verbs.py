"""Verbs of the shell on two clusters of the same state: Apache's shell on its bookies, `bkspark shell` on ours.

A step is a command line. The exit codes of both runs are compared, as a shell sees them (Apache's -1 is 255), and the
facts that the step names: what a pattern finds in the output of each shell. Before that, ids of bookies become b1, b2,
b3, the identity of the cluster becomes INSTANCE, and its folder DIR. Order does not count.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bkspark.cli.__main__ import main
from tests.interop.apache import ApacheCluster
from tests.interop.peer import Peer

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Fact:
    """What both outputs must say: the texts that `apache` finds in Apache's, and `ours` in ours."""

    apache: str
    ours: str

    def of(self, output: str, *, is_ours: bool) -> list[str]:
        """Return what an output says, in small letters and in order of the alphabet."""
        found = re.finditer(self.ours if is_ours else self.apache, output, re.MULTILINE)
        texts = {" ".join(each for each in match.groups() if each is not None) or match[0] for match in found}
        return sorted(text.lower() for text in texts)


def both(pattern: str) -> Fact:
    """A fact that both outputs say alike."""
    return Fact(pattern, pattern)


@dataclass(frozen=True, slots=True)
class Step:
    """One command line: `words` with {names} of the twin; `answer`: what a person types at each question.

    `ids`: how ledgers are named: long, hex or uuid.
    `differs`: why exit code or facts are not Apache's; "" where they are. A difference that is gone is an error, too.
    """

    words: str
    facts: tuple[Fact, ...] = ()
    answer: str = ""
    ids: str = "long"
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shell did: its exit code, as its caller sees it, and all that it printed."""

    code: int
    output: str


@dataclass
class Twin:
    """A cluster, the shell that runs on it, and the configuration file of its first bookie."""

    cluster: ApacheCluster
    file: Path
    run: Callable[[Twin, Step], Answer]
    is_ours: bool
    names: dict[str, str] = field(default_factory=dict)
    """What a step may call by name: b1, b2, b3, dir, and what a test adds."""

    def __post_init__(self) -> None:
        self.names |= {f"b{number}": each.id for number, each in enumerate(self.cluster.bookies, start=1)}
        self.names["dir"] = str(self.file.parent)

    def words(self, step: Step) -> list[str]:
        """Return the words of a step, with the names filled in."""
        return [word.format_map(self.names) for word in step.words.split()]

    def said(self, step: Step, output: str) -> list[list[str]]:
        """Return the facts of a step in an output, with the same names for both twins."""
        texts = {name: value for name, value in self.names.items() if not value.isdecimal()}
        for name, value in sorted(texts.items(), key=lambda each: -len(each[1])):
            output = output.replace(value, "DIR" if name == "dir" else name)
        output = _UUID.sub("INSTANCE", output)
        return [fact.of(output, is_ours=self.is_ours) for fact in step.facts]


def apaches_shell(peer: Peer) -> Callable[[Twin, Step], Answer]:
    """Return what runs steps by Apache's shell."""

    def run(twin: Twin, step: Step) -> Answer:
        words = twin.words(step)
        found = peer.call(
            "shell", uri=twin.cluster.uri, words=words, file=str(twin.file), ids=step.ids, answer=step.answer
        )
        return Answer(int(found["exit"]) & 0xFF, str(found["output"]))

    return run


def our_shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[Twin, Step], Answer]:
    """Return what runs steps by `bkspark shell`."""

    def run(twin: Twin, step: Step) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.StringIO(step.answer))
        capfd.readouterr()
        code = main(["shell", "-conf", str(twin.file), "-ledgeridformat", step.ids, *twin.words(step)])
        printed = capfd.readouterr()
        return Answer(code, printed.out + printed.err)

    return run


def configuration(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a bk_server.conf."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def differences(apache: Twin, ours: Twin, steps: Iterable[Step]) -> list[str]:
    """Run steps on both twins; return what is not as the steps say."""
    found = []
    for step in steps:
        theirs, our = apache.run(apache, step), ours.run(ours, step)
        their_facts, our_facts = apache.said(step, theirs.output), ours.said(step, our.output)
        is_same = (theirs.code, their_facts) == (our.code, our_facts)
        if is_same and not any(each == [] for each in their_facts) and not step.differs:
            continue
        if step.differs and not is_same:
            continue
        why = "the difference is gone" if step.differs else "no fact is found" if is_same else "different"
        found.append(
            f"{step.words}: {why}\n  Apache's: {theirs.code} {their_facts}\n  ours:     {our.code} {our_facts}\n"
            f"--- Apache's\n{theirs.output}--- ours\n{our.output}"
        )
    return found
