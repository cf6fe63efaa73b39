"""Which tests prove which item of the conformance checklist, between which programs.

`python -m tests.interop.conformance > docs/compatibility.md` writes the tables; a test holds them against the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.interop import traps

ROOT = Path(__file__).parents[2]

JAVA_V2, JAVA_V3, OURS_V2, OURS_V3, MIXED = range(5)
COLUMNS = ("Java V2 on ours", "Java V3 on ours", "ours V2 on Apache's", "ours V3 on Apache's", "mixed ensembles")
ITEMS = {
    1: "Vectors, for all four digests",
    2: "V2 and V3 on one port, bad frames, many connections",
    3: "Metadata and cookies of all versions",
    4: "Java client, our bookies: every call",
    5: "Our client, Apache's bookies: every call; one recovers what the other left",
    6: "Crashes of the bookie",
    7: "Autorecovery",
    8: "Full disk, read-only, and back",
    9: "Apache's shell",
    10: "A Pulsar broker",
}

BOTH = "tests/interop/test_both_clients.py"
CALLS = "tests/interop/test_every_call.py"
IDENTITY = "tests/interop/test_identity.py"
REPAIR = "tests/interop/test_repair_together.py"
EVERY_CALL = f"{CALLS}::test_item_4_every_call_of_javas_client"
OUR_CALLS = "tests/interop/test_our_v3.py::test_item_5_explicit_lac_long_poll_force_and_the_list_of_entries"
MIXED_RECOVERY = f"{CALLS}::test_item_5_ledgers_of_both_kinds_of_bookies_are_recovered_by_either_client"

CELLS: dict[int, dict[int, tuple[str, ...]]] = {
    3: {
        JAVA_V2: ("tests/interop/test_java_tools.py::test_item_3_*",),
        MIXED: (f"{IDENTITY}::test_item_3_*",),
        OURS_V2: (f"{BOTH}::test_items_4_5_both_show*",),
    },
    4: {
        JAVA_V2: (EVERY_CALL, f"{BOTH}::test_items_4_5_*"),
        JAVA_V3: (
            EVERY_CALL,
            f"{CALLS}::test_item_4_java_in_v3_replaces*",
            "tests/interop/test_java_tools.py::test_item_4_a_call_that_needs_v3_is_answered",
        ),
        MIXED: (MIXED_RECOVERY,),
    },
    5: {
        OURS_V2: (f"{BOTH}::test_items_4_5_*",),
        OURS_V3: ("tests/interop/test_our_v3.py::test_item_5_what*", OUR_CALLS),
        MIXED: (MIXED_RECOVERY,),
    },
    7: {
        JAVA_V2: (f"{REPAIR}::test_item_7_javas_worker*",),
        OURS_V2: (f"{REPAIR}::test_item_7_our_worker*",),
        MIXED: (
            f"{REPAIR}::test_item_7_one_auditor*",
            f"{REPAIR}::test_item_7_a_ledger_that*",
            f"{REPAIR}::test_item_7_our_auditor*",
            f"{REPAIR}::test_item_7_javas_auditor*",
            f"{REPAIR}::test_item_7_our_command*",
        ),
    },
    8: {
        JAVA_V2: (f"{REPAIR}::test_item_8_*",),
        JAVA_V3: (f"{REPAIR}::test_item_8_*",),
        MIXED: (f"{REPAIR}::test_item_8_*",),
    },
    9: {
        JAVA_V2: (f"{CALLS}::test_item_9_*", "tests/interop/test_java_tools.py::test_item_9_*"),
        MIXED: (f"{REPAIR}::test_item_9_*", f"{IDENTITY}::test_item_9_*"),
    },
    10: {JAVA_V2: ("tests/interop/test_pulsar.py::test_item_10_*",)},
}
"""Item -> column -> the tests, with `*` for the rest of a name."""

OURS_ALONE: dict[int, tuple[str, ...]] = {
    1: (
        "tests/wire/test_digest.py::test_sealed_entry_matches_vector",
        "tests/wire/test_v2.py::test_add_matches_vector",
    ),
    2: ("tests/bookie/test_v3.py::test_item_2_*", "tests/bookie/test_v3.py::test_frame_*"),
    3: ("tests/metadata/test_formats.py::test_*",),
    6: ("tests/crash/test_campaign.py::test_every_crash_image_starts_and_keeps_its_promises",),
    7: ("tests/replication/test_autorecovery.py::test_*",),
    8: ("tests/bookie/test_full_disk.py::test_small_disk_*", "tests/bookie/test_read_only.py::test_*"),
}
"""Tests of an item with our programs on both sides, or with bytes that Apache's wrote."""

_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_ITEM_TEST = re.compile(r"^test_items?_(\d+(?:_\d+)*)_[a-z]")


def tests_of(pattern: str) -> list[str]:
    """Return the names that `file::name` or `file::beginning*` stands for."""
    path, _, wanted = pattern.partition("::")
    names: list[str] = _TEST.findall((ROOT / path).read_text())
    return [name for name in names if name == wanted or (wanted.endswith("*") and name.startswith(wanted[:-1]))]


def patterns() -> Iterator[str]:
    """Yield everything that a table names."""
    for columns in CELLS.values():
        for tests in columns.values():
            yield from tests
    for tests in OURS_ALONE.values():
        yield from tests


def item_tests() -> dict[str, list[int]]:
    """Return the items of every interop test that names some, as `file::name`."""
    found = {}
    for path in sorted((ROOT / "tests" / "interop").rglob("test_*.py")):
        for name in _TEST.findall(path.read_text()):
            if numbers := _ITEM_TEST.match(name):
                found[f"{path.relative_to(ROOT)}::{name}"] = [int(number) for number in numbers[1].split("_")]
    return found


def document() -> str:
    """Return docs/compatibility.md."""
    return "\n".join([*_head(), *_matrix(), "", *_proofs(), "", *_calls(), "", *traps.table(), ""])


def _head() -> list[str]:
    return [
        "# Compatibility with Apache BookKeeper",
        "",
        "`python -m tests.interop.conformance` generates this page from the names of the tests. Do not edit it.",
        "",
        "The tests of `tests/interop` run Apache's own client, bookies and shell (4.18.0, from Maven), unchanged.",
        "`make test-interop` runs all of them, `make test` those that are not marked `long`.",
        "The item numbers are those of the conformance checklist; the tests' names contain them. `yes` means that",
        "the tests listed below pass between these programs; `-` means that there is no test. 'Ours' means bkspark's.",
        "Items 1, 2 and 6 are tested with bkspark's programs on both sides, items 1 and 3 with bytes of Apache's.",
        "",
    ]


def _matrix() -> list[str]:
    lines = ["| Item | " + " | ".join(COLUMNS) + " | ours alone |", "|---|" + "---|" * (len(COLUMNS) + 1)]
    for item, what in ITEMS.items():
        tested = [column in CELLS.get(item, {}) for column in range(len(COLUMNS))] + [item in OURS_ALONE]
        lines.append(f"| {item}. {what} | " + " | ".join("yes" if is_tested else "-" for is_tested in tested) + " |")
    return lines


def _proofs() -> list[str]:
    lines = ["## The tests", ""]
    for item, what in ITEMS.items():
        lines.append(f"**{item}. {what}**")
        lines.append("")
        for column, tests in sorted(CELLS.get(item, {}).items()):
            lines.append(f"* {COLUMNS[column]}: " + ", ".join(f"`{test}`" for test in tests))
        if item in OURS_ALONE:
            lines.append("* ours alone: " + ", ".join(f"`{test}`" for test in OURS_ALONE[item]))
        lines.append("")
    return lines[:-1]


def _calls() -> list[str]:
    from tests.interop.cases import CALLS_IN_BOTH, CALLS_IN_V2, CALLS_IN_V3

    lines = [
        "## Calls of Apache's Java client",
        "",
        f"Each is checked by `{EVERY_CALL}`,",
        "on our bookies, and for the checks' sake on Apache's in V3. `no`: Apache's client lacks it in this protocol.",
        "",
        "| Call | V2 on ours | V3 on ours |",
        "|---|---|---|",
    ]
    lines += [f"| {call} | yes | yes |" for call in sorted(CALLS_IN_BOTH)]
    lines += [f"| {call} | yes | no |" for call in sorted(CALLS_IN_V2)]
    lines += [f"| {call} | no | yes |" for call in sorted(CALLS_IN_V3)]
    return lines


if __name__ == "__main__":
    print(document(), end="")
