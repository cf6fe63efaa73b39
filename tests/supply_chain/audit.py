"""Looks for known vulnerabilities of the packages in the lock files.

    python -m tests.supply_chain.audit PIP_AUDIT

PIP_AUDIT is the command of pip-audit, which `make audit` installs. Exit code 0: none is known. 1: some are, and each is
named. 2: pip-audit failed, for example because it cannot read a lock file. 3: the database could not be asked, or does
not know all packages; what can be checked without it is, in tests/supply_chain/test_locks.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.supply_chain.locks import EXTRAS_OF_LOCKS, FOLDER

FOUND, FAILED, SKIPPED = 1, 2, 3
_TIMEOUT_S = 300
_NO_ANSWER = f"no answer within {_TIMEOUT_S} s"
_UNREACHABLE = re.compile(
    r"your network may be blocking this service|could not connect to|connection (reset|refused|aborted|broken)"
    r"|\b(Connect(ion)?(Error|Timeout)|ReadTimeout|ProxyError|SSLError|MaxRetryError|ServiceError)\b"
    r"|max retries exceeded|\btimed out\b",
    re.IGNORECASE,
)
"""What pip-audit says last if the database does not answer. Names of packages have such words, too: networkx."""


def main(pip_audit: str) -> int:
    """Ask about each lock file, print what is known, and return the exit code."""
    codes = [judge(lock, *_asked(pip_audit, lock)) for lock in ("build.txt", "kerberos-build.txt", *EXTRAS_OF_LOCKS)]
    return next((code for code in (FOUND, FAILED, SKIPPED) if code in codes), 0)


def _asked(pip_audit: str, lock: str) -> tuple[list[dict[str, Any]], str]:
    """Return what pip-audit found of each package, and the last line of its messages."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [pip_audit, "--disable-pip", "--require-hashes", "--progress-spinner", "off"]
        command += ["--requirement", str(FOLDER / lock), "--format", "json", "--output", str(report)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [], _NO_ANSWER
        last = done.stderr.strip().splitlines()[-1:]
        found = json.loads(report.read_text())["dependencies"] if report.exists() else []
        return found, last[0] if last else f"pip-audit said nothing, and its exit code was {done.returncode}"


def judge(lock: str, packages: list[dict[str, Any]], message: str) -> int:
    """Print what is known about the packages of a lock file, and return the exit code."""
    vulnerable = [package for package in packages if package.get("vulns")]
    for package in vulnerable:
        for each in package["vulns"]:
            fixed = ", ".join(each["fix_versions"]) or "no version yet"
            print(f"{lock}: {package['name']} {package['version']}: {each['id']}, fixed in {fixed}")
    if vulnerable:
        return FOUND
    if not packages:
        is_unreachable = message == _NO_ANSWER or _UNREACHABLE.search(message) is not None
        what = "the database could not be asked" if is_unreachable else "pip-audit failed"
        print(f"{lock}: not audited: {what}: {message}")
        return SKIPPED if is_unreachable else FAILED
    skipped = [package for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        # A mirror answers 404 instead of the database. The reason sounds as if the packages did not exist.
        print(
            f"{lock}: not audited: the database at pypi.org could not be asked, because a mirror without it answered "
            f"for all {len(skipped)} packages: {skipped[0]['skip_reason']}"
        )
        return SKIPPED
    if skipped:
        names = ", ".join(package["name"] for package in skipped)
        print(f"{lock}: the database does not know {len(skipped)} of {len(packages)} packages: {names}")
        return SKIPPED
    print(f"{lock}: no known vulnerabilities in {len(packages)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
