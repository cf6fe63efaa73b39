"""docs/architecture.md as a test: the product keeps its rules on imports, and the checker would notice if not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import layering
from tests.sources import GROUP

ROOT = Path(__file__).parent.parent
CHECKER = Path(layering.__file__)


@pytest.mark.xdist_group(GROUP)
def test_the_product_breaks_no_rule() -> None:
    broken = layering.violations(ROOT)
    assert not broken, "\n".join(broken)


UNSHOWN = (
    "ids",
    "errors",
    "extras",
    "options",
    "tasks",
    "memory",
    "parent_death",
    "child_reports",
    "stages",
    "metrics",
    "tracing",
    "version",
    "properties",
    "configuration_files",
    "client_files",
    "interpreter",
    "secret_files",
    "changed_files",
    "one_line",
    "command_line",
    "arrow_sizes",
    "decimals",
    "buckets",
    "log_limit",
    "log_lines",
    "failure_log",
    "wall_clock",
)
"""Modules of the lowest layer, which share a line of the page."""


def test_the_order_is_the_one_that_the_architecture_page_shows() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listing = page.split("```")[1]
    shown = re.findall(r"bkspark\.[a-z]+", "\n".join(line[:19] for line in listing.splitlines()))
    below_core = [name for layer in layering.LAYERS for name in layer]
    assert shown == [name for name in reversed(below_core) if name in shown]
    unshown = {f"bkspark.{name}" for name in UNSHOWN}
    assert set(below_core) - set(shown) == unshown


def test_every_part_of_bkspark_has_a_layer() -> None:
    paths = [path for path in (ROOT / "bkspark").iterdir() if path.is_dir() or path.suffix == ".py"]
    parts = {f"bkspark.{path.stem}" for path in paths if not path.name.startswith("__")}
    unplaced = [part for part in parts if not any(part in layer for layer in layering.LAYERS)]
    assert not unplaced, f"{unplaced}: give it a place in docs/architecture.md and tests/layering.py"


def test_every_module_that_a_rule_names_exists() -> None:
    """A rule about a module that was renamed checks nothing."""
    named = set(re.findall(r'"((?:bkspark|bookie_service|bkspark_console)(?:\.\w+)+)"', CHECKER.read_text()))
    named |= {*layering.CONSOLE_IMPORTS, *layering.SERVER_IMPORTS, *layering.PURE}
    named |= {name for layer in (*layering.LAYERS, *layering.SERVER_LAYERS) for name in layer}
    places = {name: ROOT.joinpath(*name.split(".")) for name in named}
    assert sorted(name for name, at in places.items() if not (at.is_dir() or at.with_suffix(".py").exists())) == []


def test_the_rooms_of_the_server_are_those_that_the_architecture_page_shows() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    listing = page.split("```")[3]
    shown = re.findall(r"^bookie_service[._a-z]+", listing, re.MULTILINE)
    rooms = [room for layer in reversed(layering.SERVER_LAYERS) for room in layer if not room.endswith("__main__")]
    assert [room for room in shown if not room.endswith("__main__")] == rooms


@pytest.mark.xdist_group(GROUP)
def test_no_two_classes_share_a_name_except_a_call_and_its_blocking_form() -> None:
    assert layering.shared_names(ROOT) == {}


def test_a_name_given_twice_is_found(tmp_path: Path) -> None:
    _plant(
        tmp_path,
        {
            "bookie_service/engine/bookie.py": "class Client: ...",
            "bkspark/client/x.py": "class Client: ...\nclass Log: ...",
            "bkspark/blocking/x.py": "class Log: ...",
        },
    )
    assert set(layering.shared_names(tmp_path)) == {"Client"}


@pytest.mark.parametrize("module", ["bkspark", "bkspark.cli.__main__", "bkspark.wire.v2", "bkspark.core.writer"])
def test_importing_it_loads_neither_spark_nor_zookeeper(module: str) -> None:
    program = f"import sys, {module}; print(*{{'pyspark', 'kazoo'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_p19_nothing_that_runs_on_the_event_loop_waits_in_place() -> None:
    """BOOKKEEPER-326: what waits on the thread that has to deliver the answer waits for ever."""
    waits = re.compile(r"time\.sleep|run_until_complete|asyncio\.run\(|run_coroutine_threadsafe|concurrent\.futures")
    threads = re.compile(r"^import threading|^from threading", re.MULTILINE)
    for part in ("core", "client", "net", "metadata", "log"):
        for path in (ROOT / "bkspark" / part).glob("*.py"):
            source = path.read_text()
            assert not waits.search(source), path
            # kazoo's client is stopped by a thread of its own: no call of ours waits for it.
            assert path.name == "zookeeper.py" or not threads.search(source), path


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("bkspark/core/writer.py", "import time", "is PURE but imports time"),
        ("bkspark/wire/v2.py", "def f():\n    import socket", "is PURE but imports socket"),
        ("bkspark/core/placement.py", "import numpy as np\nnp.random.default_rng()", "is PURE but uses numpy.random"),
        ("bkspark/core/placement.py", "from numpy.random import default_rng", "is PURE but imports numpy.random"),
        ("bkspark/errors.py", "import logging", "is PURE but imports logging"),
        ("bkspark/entries.py", "from pathlib import Path", "is PURE but imports pathlib"),
        ("bookie_service/formats/journal.py", "import os", "is PURE but imports os"),
        ("bookie_service/formats/journal.py", "open('file')", "is PURE but calls open"),
        ("bookie_service/engine/rules.py", "from random import choice", "is PURE but imports random"),
        ("bkspark/core/writer.py", "import bkspark.net", "bkspark.core imports bkspark.net, which is above it"),
        ("bkspark/core/writer.py", "from bkspark import net", "bkspark.core imports bkspark.net, which is above"),
        ("bkspark/core/writer.py", "from bkspark import x", "bkspark.core imports bkspark, which is above it"),
        ("bkspark/ids.py", "from bkspark.entries import x", "bkspark.ids imports bkspark.entries, which is above"),
        (
            "bkspark/log/log.py",
            "from bkspark.client import x",
            "bkspark.log imports bkspark.client, which is",
        ),
        ("bkspark/ledger/cluster.py", "def f():\n    from bkspark.log import x", "bkspark.ledger imports bkspark.log"),
        ("bkspark/net/pool.py", "import kazoo.client", "imports kazoo.client, which only bkspark.metadata.zookeeper"),
        (
            "bkspark/ledger/writer.py",
            "from bkspark.core.writer import WriterCore\nclass Mine(WriterCore):\n    pass",
            "Mine inherits from WriterCore, which is part of a core",
        ),
        (
            "bkspark/ledger/writer.py",
            "from bkspark.core import writer\nclass Mine(writer.WriterCore):\n    pass",
            "Mine inherits from writer.WriterCore, which is part of a core",
        ),
        (
            "bkspark/core/relaxed.py",
            "class Core:\n    pass\nclass Relaxed(Core):\n    pass",
            "Relaxed inherits from Core, which is part of a core",
        ),
        (
            "bookie_service/replication/copying.py",
            "from bkspark.wire.digest import EntryDigest\nclass Whole(EntryDigest):\n    pass",
            "Whole inherits from EntryDigest, which is part of a core",
        ),
        ("bkspark/cli/demo.py", "import pyspark.sql", "imports pyspark.sql, which only bkspark.spark and"),
        ("bkspark/cli/local.py", "import bookie_service", "imports bookie_service, which only bookie_service may"),
        ("bookie_service/server.py", "from bkspark.ledger import x", "the server imports bkspark.ledger"),
        (
            "bookie_service/replication/worker.py",
            "from bkspark.client import x",
            "the server imports bkspark.client",
        ),
        ("bookie_service/server.py", "import bkspark", "the server imports bkspark;"),
        ("bookie_service/server.py", "from . import rules", "a relative import"),
        ("bookie_service/server.py", "open('file')", "uses open()"),
        ("bookie_service/storage/journal/journal.py", "import os\nos.fdatasync(3)", "uses os.fdatasync"),
        ("bookie_service/storage/journal/journal.py", "from os import fsync", "uses os.fsync"),
        ("bookie_service/storage/journal/journal.py", "import os\nos.path.exists('file')", "uses os.path.exists"),
        ("bookie_service/storage/journal/journal.py", "import mmap", "imports mmap"),
        (
            "bookie_service/engine/reads.py",
            "from bookie_service.engine.bookie import Bookie\nclass Some(Reading):\n    pass",
            "has requests that change nothing but imports bookie_service.engine.bookie",
        ),
        (
            "bookie_service/engine/reads.py",
            "class Some(Reading):\n    def proceed(self, store):\n        store.fence(5)",
            "has requests that change nothing but uses .fence",
        ),
        ("bookie_service/storage/layout.py", "def f(path):\n    path.mkdir(parents=True)", "uses Path.mkdir()"),
        (
            "bookie_service/storage/io/files.py",
            "from bookie_service.engine.reads import Parts",
            "bookie_service.storage imports bookie_service.engine.reads, which is above it",
        ),
        (
            "bookie_service/engine/bookie.py",
            "if TYPE_CHECKING:\n    from bookie_service.network.send_buffer import SendBuffer",
            "bookie_service.engine imports bookie_service.network.send_buffer, which is above it",
        ),
        (
            "bookie_service/cluster/limbo_check.py",
            "from bookie_service.gc.gc_policy import OFF",
            "bookie_service.cluster imports bookie_service.gc.gc_policy, which is beside it",
        ),
        (
            "bookie_service/admin/inspection/index.py",
            "from bookie_service.admin.check import Check",
            "bookie_service.admin.inspection imports bookie_service.admin.check, which is above it",
        ),
        (
            "bookie_service/settings/configuration.py",
            "from bookie_service.service import BookieService",
            "bookie_service.settings imports bookie_service.service, which is above it",
        ),
        (
            "bookie_service/network/connection.py",
            "from bookie_service.admin.inspection.findings import Damage",
            "imports bookie_service.admin.inspection.findings, which only bookie_service.admin may",
        ),
        (
            "bookie_service/replication/worker.py",
            "from bookie_service.settings.configuration import load",
            "bookie_service.replication imports bookie_service.settings.configuration, which is above it",
        ),
        ("bookie_service/service.py", "import bookie_service.process", "which is above it"),
        ("bookie_service/helpers.py", "", "bookie_service.helpers is in no room"),
        ("bookie_service/engine/places.py", '"""Places. Pure."""', "says that it is pure; list it in PURE"),
        ("bkspark/client/places.py", '"""Where it is. Decisions only."""', "says that it is pure; list it in PURE"),
        ("bkspark/core/writer.py", "from bkspark.net import pool", "is PURE but imports bkspark.net"),
        ("bkspark/spark/option_values.py", "datetime.now()", "is PURE but uses datetime.now"),
        (
            "bkspark/core/writer.py",
            "from bkspark.wire import v2",
            "imports bkspark.wire.v2; a core knows no wire protocol",
        ),
        ("bookie_service/engine/rules.py", "from bkspark.wire.v3 import StatusCode", "imports bkspark.wire.v3; a core"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, source: str, complaint: str) -> None:
    _plant(tmp_path, {"bkspark/net/__init__.py": "", "bkspark/wire/v2.py": "", path: source})
    found = layering.violations(tmp_path)
    assert any(line.startswith(f"{path}:") and complaint in line for line in found), found


def test_an_import_cycle_is_found_even_under_type_checking(tmp_path: Path) -> None:
    _plant(
        tmp_path,
        {
            "bkspark/net/pool.py": "from bkspark.net import channel",
            "bkspark/net/channel.py": "if TYPE_CHECKING:\n    from bkspark.net.pool import Pool",
        },
    )
    assert layering.violations(tmp_path) == [
        "import cycle: bkspark.net.channel -> bkspark.net.pool -> bkspark.net.channel"
    ]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "bkspark/core/writer.py",
            "import struct\nimport numpy as np\nfrom bkspark.wire import status",
        ),
        ("bkspark/__init__.py", "def register(spark):\n    from bkspark.spark import source"),
        ("bkspark/metadata/zookeeper.py", "from kazoo.client import KazooClient"),
        ("bkspark/spark/source.py", "import pyspark.sql\nfrom bkspark.blocking import Client"),
        ("bookie_service/storage/io/files.py", "import os\nimport mmap\nos.fdatasync(3)\nopen('file')"),
        (
            "bookie_service/storage/journal/journal.py",
            "import os\nos.path.join('a', 'b')\nself.files.mkdir(path)",
        ),
    ],
)
def test_what_the_rules_allow_passes(tmp_path: Path, path: str, source: str) -> None:
    _plant(tmp_path, {"bkspark/ids.py": "", "bkspark/wire/status.py": "", path: source})
    assert layering.violations(tmp_path) == []


def _plant(root: Path, sources: dict[str, str]) -> None:
    for name, source in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n")
