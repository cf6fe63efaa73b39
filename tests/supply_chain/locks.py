"""The lock files of requirements/: each line `name==version ; marker \\` with the SHA-256 of each of its files."""

from __future__ import annotations

import configparser
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
EXTRAS_OF_LOCKS: dict[str, tuple[str, ...]] = {
    "bookie.txt": ("bookie",),
    "executor.txt": ("spark",),
    "spark.txt": ("spark",),
    "ci.txt": ("demo", "test", "fuzz", "deploy"),
    "kerberos.txt": ("kerberos",),
}
"""Lock files made from setup.cfg, and the extras that each of them installs."""
PROVIDED = {"executor.txt": frozenset({"pyspark"})}
"""What the hosts of a lock file have already, so that it is left out."""
REFUSED = {
    "kerberos": "unmaintained; gssapi is maintained",
    "pure-sasl": "unmaintained since 2019; kazoo imports it for SASL only",
    "pyjks": "unmaintained",
    "pykerberos": "unmaintained; gssapi is maintained",
    "sasl": "unmaintained",
    "sdnotify": "unmaintained since 2017; bookie_service/admin/service_manager.py needs no library",
}
"""Packages that must not be installed, neither directly nor by another one, and why."""


@dataclass(frozen=True)
class Locked:
    """One version of a package; `hashes` are those of its files."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "=="
        return specifier.version


def read(name: str) -> list[Locked]:
    """Return what a lock file holds. Raises ValueError: a line is neither a pinned package nor a hash."""
    text = re.sub(r"\\\n\s*", " ", (FOLDER / name).read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [_locked(line) for line in lines]


def _locked(line: str) -> Locked:
    requirement, *hashes = line.split(" --hash=")
    if not all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes):
        raise ValueError(f"no SHA-256: {line}")
    return Locked(Requirement(requirement), tuple(each.strip() for each in hashes))


def required(extras: tuple[str, ...]) -> list[Requirement]:
    """Return what the ledger client and these extras need by setup.cfg; an extra among extras is what it asks for."""
    options = configparser.ConfigParser(inline_comment_prefixes=("#",))
    options.read(ROOT / "setup.cfg")
    texts = [options["options"]["install_requires"], *(options["options.extras_require"][extra] for extra in extras)]
    found: list[Requirement] = []
    for line in "\n".join(texts[1:]).splitlines():
        if line.strip():
            requirement = Requirement(line)
            found += required(tuple(sorted(requirement.extras))) if requirement.name == "bkspark" else [requirement]
    client = [Requirement(line) for line in texts[0].splitlines() if line.strip()]
    return [requirement for requirement in client if requirement.name != "bkspark"] + found


def required_by(lock: str) -> list[Requirement]:
    """Return what a lock file must hold by setup.cfg."""
    provided = PROVIDED.get(lock, frozenset())
    return [each for each in required(EXTRAS_OF_LOCKS[lock]) if canonicalize_name(each.name) not in provided]


if __name__ == "__main__":
    for each in required_by(sys.argv[1]):
        print(each)
