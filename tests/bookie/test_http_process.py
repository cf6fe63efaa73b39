"""A bookie process with HTTP: metrics and `/api/v1` after load, changes, restarts. Apache's conf keys turn it on."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bkspark.blocking import Client, run
from bkspark.metadata import registration
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.security.roles import Role
from bookie_service.admin.http.api_v1 import BookieApi
from bookie_service.admin.http.cluster_v1 import readable
from bookie_service.admin.http.messages import HttpError, HttpRequest
from bookie_service.admin.http.routing import Routes
from bookie_service.operation.bookie_operator import BookieOperator
from bookie_service.operation.live_keys import LiveKeys
from bookie_service.service import BookieService
from bookie_service.settings.configuration import configure
from bookie_service.storage.io.files import LocalFiles
from tests.bookie.child import BookieChild
from tests.bookie.http_process import HTTP, answer, call
from tests.bookie.operator_parts import STEADY
from tests.polling import wait_until

PATTERNS_OF_DASHBOARDS = {
    # name -> labels, as public dashboards select them (operator reference, 2.3)
    "bookie_SERVER_STATUS": set(),
    "bookkeeper_server_ADD_ENTRY_count": {"success"},
    "bookkeeper_server_READ_ENTRY_count": {"success"},
    "bookkeeper_server_ADD_ENTRY_REQUEST_count": {"success"},
    "bookkeeper_server_READ_ENTRY_REQUEST_count": {"success"},
    "bookkeeper_server_ADD_ENTRY_IN_PROGRESS": set(),
    "bookkeeper_server_READ_ENTRY_IN_PROGRESS": set(),
    "bookkeeper_server_ADD_ENTRY_BLOCKED": set(),
    "bookkeeper_server_READ_ENTRY_BLOCKED": set(),
    **{f"bookkeeper_server_thread_executor_{what}": {"thread"} for what in ("queue", "completed", "tasks_completed")},
    "bookie_WRITE_BYTES": set(),
    "bookie_READ_BYTES": set(),
    "bookie_journal_JOURNAL_ADD_ENTRY_count": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_SYNC_count": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_QUEUE_SIZE": {"journalIndex"},
    "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE": {"journalIndex"},
    "bookie_ledgers_count": {"ledgerDir", "indexDir"},
    "bookie_entries_count": {"ledgerDir", "indexDir"},
    "bookie_write_cache_size": {"ledgerDir", "indexDir"},
    "bookie_read_cache_size": {"ledgerDir", "indexDir"},
    "bookie_read_cache_hits": {"ledgerDir", "indexDir"},
    "bookie_read_cache_misses": {"ledgerDir", "indexDir"},
    "bookie_read_entry_count": {"success"},
    "bookie_readahead_batch_count_sum": {"success"},
    "bookie_readahead_batch_count_count": {"success"},
    "bookie_ledger_writable_dirs": set(),
    "bookie_ledger_num_dirs": set(),
    "bookie_DELETED_LEDGER_TOTAL": set(),
    "bookie_MAJOR_COMPACTION_TOTAL": set(),
    "bookie_MINOR_COMPACTION_TOTAL": set(),
    "bookie_RECLAIMED_DELETION_SPACE_BYTES": set(),
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES": set(),
    "bookie_ACTIVE_ENTRY_LOG_TOTAL": set(),
    "bookie_ACTIVE_LEDGER_TOTAL": set(),
}
SUMMARIES = (
    "bookkeeper_server_ADD_ENTRY",
    "bookkeeper_server_READ_ENTRY",
    "bookkeeper_server_ADD_ENTRY_REQUEST",
    "bookkeeper_server_READ_ENTRY_REQUEST",
    "bookie_journal_JOURNAL_ADD_ENTRY",
    "bookie_journal_JOURNAL_SYNC",
)


def samples(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples at /metrics by their whole name, read as Prometheus reads them."""
    status, text = call(port, "/metrics")
    assert status == 200
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
            if family.type == "counter":
                # The parser gives every counter the suffix that OpenMetrics wants; Prometheus takes names as they are.
                found.setdefault(sample.name.removesuffix("_total"), []).append((sample.labels, sample.value))
    return found


@pytest.mark.cluster
def test_loaded_bookie_has_every_metric_that_dashboards_show(uri: str, tmp_path: Path) -> None:
    """Operator reference, 2.3: each name, with its labels, and filled after load."""
    child = BookieChild(tmp_path / "bookie", uri, **HTTP)
    with child.running():
        port = child.facts["http_port"]
        with child.connect() as peer:
            for first in range(0, 1000, 100):
                peer.add(5, first, [b"x" * 500] * 100)
            call(port, "/api/v1/bookie/gc", "PUT")
            wait_until(lambda: samples(port)["bookie_entries_count"][0][1] >= 500, "the entries to be flushed")
            for entry in range(1000):
                peer.read(5, entry)
            assert peer.read(5, 4000).status != 0
        wait_until(
            lambda: any(
                labels.get("quantile") == "0.99" and value > 0
                for labels, value in samples(port)["bookkeeper_server_READ_ENTRY"]
                if labels["success"] == "true"
            ),
            "a window with reads to be closed",
        )
        found = samples(port)
        for name, labels in PATTERNS_OF_DASHBOARDS.items():
            assert name in found, name
            assert labels <= set(found[name][0][0]), name
        for name in SUMMARIES:
            shares = [labels["quantile"] for labels, _ in found[name] if labels["success"] == "true"]
            assert shares == ["0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"], name

        def total(name: str, **wanted: str) -> float:
            return sum(value for labels, value in found[name] if wanted.items() <= labels.items())

        assert total("bookkeeper_server_ADD_ENTRY_count", success="true") == 1000
        assert total("bookkeeper_server_READ_ENTRY_count", success="true") == 1000
        assert total("bookkeeper_server_READ_ENTRY_count", success="false") == 1
        assert total("bookie_WRITE_BYTES") == total("bookie_READ_BYTES") > 500_000
        assert total("bookie_journal_JOURNAL_ADD_ENTRY_count", success="true") == 1000
        assert total("bookie_journal_JOURNAL_SYNC_count", success="true") > 0
        assert total("bookie_readahead_batch_count_sum", success="true") > 0
        assert total("bookie_read_cache_hits") > 0
        assert total("bookie_read_cache_misses") > 0
        assert total("bookie_ledgers_count") == 1
        directory = re.sub(r"\W", "_", str(tmp_path / "bookie" / "ledgers"))
        assert 0 < total(f"bookie_ledger_dir_{directory}_usage") <= 100
        for stage in ("received", "queued", "journal_written", "synced", "answered"):
            assert total("bkspark_bookie_add_stage_seconds_count", stage=stage) == 1000
            assert total("bkspark_bookie_add_stage_seconds_sum", stage=stage) > 0, stage
        assert total("bkspark_bookie_read_stage_seconds_count", stage="answered") == 1001
        assert total("process_cpu_seconds_total") > 0
        # The metrics have a port of their own, too, with nothing else on it.
        assert "bookie_SERVER_STATUS" in samples(child.facts["metrics_port"])
        assert call(child.facts["metrics_port"], "/api/v1/bookie/state")[0] == 404


@pytest.mark.cluster
def test_directories_whose_names_are_alike_in_metrics_have_one_series(uri: str, tmp_path: Path) -> None:
    """Prometheus keeps one of two series with one name, and other readers refuse the whole text."""
    directories = [tmp_path / "ledgers-1", tmp_path / "ledgers_1"]
    child = BookieChild(tmp_path / "bookie", uri, **{**HTTP, "ledgerDirectories": ",".join(map(str, directories))})
    with child.running():
        status, text = call(child.facts["http_port"], "/metrics")
        assert status == 200
        types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        assert [each for each in types if types.count(each) > 1] == []
        assert any(re.fullmatch(r"bookie_ledger_dir_\w+ledgers_1_usage", each) for each in types)
        used = [line for line in text.splitlines() if line.startswith("bkspark_bookie_directory_used_ratio")]
        assert all(sum(f'directory="{each}"' in line for line in used) == 1 for each in directories)


@pytest.mark.cluster
def test_bookie_set_read_only_stays_so_over_a_restart_until_it_is_set_writable(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP)
    with child.running():
        port = child.facts["http_port"]
        assert answer(port, "/api/v1/bookie/state/readonly") == {"readOnly": False}
        assert registered(uri, child.id) == ("available", ("127.0.0.1", port))
        assert answer(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": True}) == {"readOnly": True}
        assert registered(uri, child.id)[0] == "readonly", "the cluster knows it before the answer"
        assert (tmp_path / "bookie/ledgers/current/BOOKIE_STATUS").read_text().startswith("1,READ_ONLY,")
        assert "audit: http:127.0.0.1: set read-only" in child.log_text()
    with child.running():
        port = child.facts["http_port"]
        assert registered(uri, child.id)[0] == "readonly"
        assert answer(port, "/api/v1/bookie/state")["readOnly"] is True
        assert samples(port)["bookie_SERVER_STATUS"] == [({}, 0.0)]
        assert answer(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": False}) == {"readOnly": False}
        assert registered(uri, child.id)[0] == "available"
        with child.connect() as peer:
            assert peer.add(1, 0, [b"entry"]) == [0]


def registered(uri: str, bookie_id: str) -> tuple[str, tuple[str, int] | None]:
    """Return how a bookie is registered, and its HTTP endpoint."""

    async def look() -> tuple[str, tuple[str, int] | None]:
        parsed = MetadataUri.parse(uri)
        tree = await open_tree(parsed)
        try:
            for state, where in (("available", "available"), ("readonly", "available/readonly")):
                if await tree.exists(f"{parsed.root}/{where}/{bookie_id}") is not None:
                    data, _ = await tree.get(f"{parsed.root}/{where}/{bookie_id}")
                    return state, registration.decode(data, bookie_id).http
            return "down", None
        finally:
            await tree.close()

    return asyncio.run(look())


@pytest.mark.cluster
def test_changes_are_checked_and_secrets_are_not_shown(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, passwd="s3cret", compactionRateByBytes="1000")
    with child.running():
        port = child.facts["http_port"]
        shown = call(port, "/api/v1/config/server_config")[1]
        assert "s3cret" not in shown
        assert json.loads(shown)["passwd"] == "***"
        config = "/api/v1/config/server_config"
        assert call(port, config, "PUT", {"compactionRateByBytes": "5000"}) == (200, "Success set server config.")
        assert answer(port, config)["compactionRateByBytes"] == "5000"
        for wrong, complaint in (
            ({"journalDirectories": "/x"}, "cannot be changed while the bookie runs"),
            ({"compactionRateByBytes": "many"}, "it must be a whole number"),
            ({"compactionRateByBytes": "7", "bookiePort": "1"}, "cannot be changed"),
        ):
            status, text = call(port, config, "PUT", wrong)
            assert (status, complaint in text) == (400, True), text
        assert answer(port, config)["compactionRateByBytes"] == "5000", "all or none"
        assert call(port, config, "PUT")[0] == 404
        gc = "/api/v1/bookie/gc"
        assert answer(port, f"{gc}/suspend_compaction", "PUT", {"suspendMajor": True}) == (
            f"Suspend majorGC on BookieServer: {child.id}"
        )
        assert answer(port, f"{gc}/suspend_compaction") == {
            "isMajorGcSuspended": "true",
            "isMinorGcSuspended": "false",
        }
        assert answer(port, f"{gc}/resume_compaction", "PUT", {"resumeMajor": True, "resumeMinor": True}) == (
            f"Resume majorGC on BookieServer: {child.id}, Resume minorGC on BookieServer: {child.id}"
        )
        assert answer(port, f"{gc}/suspend_compaction")["isMajorGcSuspended"] == "false"
        assert call(port, f"{gc}/suspend_compaction", "PUT", {})[0] == 400
        assert call(port, f"{gc}/suspend_compaction", "PUT")[0] == 400
        assert call(port, f"{gc}/suspend_compaction", "PUT", ["suspendMajor"])[1] == "the body must be a JSON object\n"
        assert call(port, f"{gc}/resume_compaction")[0] == 404
        assert answer(port, gc, "PUT", {"forceMajor": False, "forceMinor": True}) == (
            f"Triggered GC on BookieServer: {child.id}"
        )
        wait_until(lambda: child.log_text().count("collect garbage, with a minor compaction") == 1, "the first pass")
        for wanted, audited in (
            ({"forceMajor": False}, "with a minor compaction"),
            ({"forceMinor": False}, "with a major compaction"),
            ({"forceMajor": False, "forceMinor": False}, "without compaction"),
            ({}, "with a major compaction"),
        ):
            before = child.log_text().count(f"collect garbage, {audited}")
            answer(port, gc, "PUT", wanted)
            line = f"collect garbage, {audited}"
            wait_until(lambda: child.log_text().count(line) == before + 1, f"{wanted}: {audited}")  # noqa: B023
        assert call(port, gc, "PUT", {"forceMajor": "true"})[0] == 400
        assert call(port, gc, "POST")[0] == 405
        for path in ("expand_storage", "entry_location_compact"):
            status, why = call(port, f"/api/v1/bookie/{path}", "PUT")
            assert (status, ":" in why) == (404, True), "Apache's paths that make no sense here say why"
        assert call(port, "/metrics", "PUT")[0] == 403
        assert call(port, "/api/v1/bookie/state", "PUT")[0] == 404
        assert call(port, "/heartbeat") == (200, "OK\n")
        assert call(port, "/api/v1/bookie/is_ready") == (200, "OK")
        log = child.log_text()
        assert "audit: http:127.0.0.1: set compactionRateByBytes=5000 (before: 1000)" in log
        assert log.count("audit: http:127.0.0.1: suspend major compaction") == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1000(1KB)"),
        (1_999_999, "1999999(1.999MB)"),
        (81_460_432_896, "81460432896(81.46GB)"),
        (270_553_174_016, "270553174016(270.553GB)"),
        (5 * 10**15, "5000000000000000(5000TB)"),
    ],
)
def test_sizes_are_written_as_by_apaches_bookies(count: int, text: str) -> None:
    """Rounded down, and no unit above TB: Pulsar's manager takes such texts apart."""
    assert readable(count) == text


@pytest.mark.cluster
def test_odd_requests_get_the_odd_answers_of_apaches_bookies(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, bookieId="first")
    child.id = "first"
    with child.running():
        port, gc = child.facts["http_port"], "/api/v1/bookie/gc"
        minor = answer(port, f"{gc}/suspend_compaction", "PUT", {"suspendMinor": True})
        assert minor == ", Suspend minorGC on BookieServer: first", "the comma of the text for both"
        assert answer(port, f"{gc}/resume_compaction", "PUT", {"resumeMinor": True, "resumeMajor": False}) == (
            ", Resume minorGC on BookieServer: first"
        )
        assert answer(port, f"{gc}/suspend_compaction", "PUT", {"suspendMajor": False, "suspendMinor": False}) == ""
        read_only = "/api/v1/bookie/state/readonly"
        for text in ("true", "false"):
            assert answer(port, read_only, "PUT", {"readOnly": text}) == {"readOnly": text == "true"}
        status = "/api/v1/autorecovery/status"
        assert answer(port, f"{status}?enabled=False", "PUT") == {"enabled": False}
        assert answer(port, f"{status}?enabled=TRUE", "PUT") == {"enabled": True}
        assert call(port, f"{status}?enabled=perhaps", "PUT")[0] == 400
        (sizes, _) = answer(port, "/api/v1/bookie/list_bookie_info").values()
        assert re.fullmatch(r": \{Free: (\d+\([0-9.]+[KMGT]B\)), Total: (\d+\([0-9.]+[KMGT]B\))\},", sizes)
        assert answer(port, "/api/v1/bookie/list_bookies?print_hostnames=true") == {"first": "127.0.0.1"}


@pytest.mark.cluster
def test_pages_of_ledgers_and_entries_are_those_of_apaches_bookies(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP)
    with child.running():
        port = child.facts["http_port"]
        with (
            Client(uri, password=b"s3cret") as client,
            client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer,
        ):
            writer.append_many([b"entry %d" % number for number in range(1500)])
        read = f"/api/v1/ledger/read?ledger_id={writer.ledger_id}"
        for query, first, last in (
            ("&page=1&start_entry_id=5&end_entry_id=7", 5, 7),
            ("&page=1&start_entry_id=998", 998, 999),
            ("&page=2&start_entry_id=5", 1000, 1499),
            ("&page=2&start_entry_id=1200&end_entry_id=1201", 1200, 1201),
            ("&page=0&start_entry_id=1498", 1498, 1499),
            ("&page=-1&start_entry_id=1498", 1498, 1499),
        ):
            found = answer(port, read + query)
            assert found.pop("Entries for page: ", None) == ({"&page=1": "1", "&page=2": "2"}.get(query[:7]))
            assert sorted(map(int, found)) == list(range(first, last + 1)), query
        for query in ("&page=2&end_entry_id=5", "&page=1&start_entry_id=1000", "&page=x", f"&page={1 << 31}"):
            assert call(port, read + query)[0] == 500, query
        beyond = call(port, f"/api/v1/ledger/metadata?ledger_id={1 << 63}")
        assert beyond[1] == f"ledger_id={1 << 63} must be a whole number from 0 to {(1 << 63) - 1}\n"
        listed = answer(port, "/api/v1/ledger/list?print_metadata=true&page=-3")
        (text,) = listed.values()
        assert text.startswith("BookieMetadataFormatVersion\t3\n"), "as it is stored"
        assert child.id in text
        assert "s3cret" not in text


def test_list_of_ledgers_goes_on_after_one_whose_metadata_are_damaged(tmp_path: Path, uri: str) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP)
    with child.running(), Client(uri) as client:
        writers = [client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(3)]
        for writer in writers:
            writer.close()
        first, bad, last = (writer.ledger_id for writer in writers)

        async def damage() -> None:
            tree = await client.asynchronous.tree()
            path = f"{MetadataUri.parse(uri).root}{ledger_path(bad, LedgerManager.HIERARCHICAL)}"
            await tree.set(path, b"damaged", -1)

        run(damage)
        for query in ("", "&decode_meta=true"):
            found = answer(child.facts["http_port"], f"/api/v1/ledger/list?print_metadata=true{query}")
            assert list(found) == [str(first), str(bad), str(last)]
            assert found[str(bad)]["ledgerId"] == bad
            assert str(bad) in found[str(bad)]["error"]


def test_probe_of_a_bookie_that_starts_gets_503(tmp_path: Path) -> None:
    """Apache: 503 `Bookie is not fully started yet`. A long replay must not look like a dead process."""
    settings = {"journalDirectories": str(tmp_path / "j"), "ledgerDirectories": str(tmp_path / "l")}

    async def asked() -> list[tuple[int, bytes]]:
        configuration = configure(settings)
        service = BookieService(LocalFiles(), configuration.service)
        keys = LiveKeys(configuration, None, settings, STEADY)
        routes = Routes()
        BookieApi(BookieOperator("127.0.0.1:3181", service, keys, LocalFiles(), STEADY)).add_to(routes)
        replies = []
        for path in ("is_ready", "gc_details", "state", "info"):
            try:
                reply = await routes.answer(HttpRequest("GET", f"/api/v1/bookie/{path}", {}, role=Role.READ))
                replies.append((reply.status, reply.body))
            except HttpError as error:
                replies.append((error.status, error.text.encode()))
        return replies

    ready, details, state, _ = asyncio.run(asked())
    assert ready == details == (503, b"Bookie is not fully started yet")
    assert json.loads(state[1])["running"] is False


@pytest.mark.cluster
def test_forced_read_only_bookie_refuses_the_switch(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri, **HTTP, forceReadOnlyBookie="true")
    with child.running():
        port = child.facts["http_port"]
        status, text = call(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": False})
        assert (status, "forceReadOnlyBookie" in text) == (400, True)
        assert answer(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": True}) == {"readOnly": True}
        assert "audit:" not in child.log_text(), "nothing changed"
        assert call(port, "/api/v1/bookie/state/readonly", "PUT", {"readOnly": "yes"})[0] == 400
        assert call(port, "/api/v1/bookie/state/readonly", "PUT")[0] == 400


@pytest.mark.cluster
def test_without_the_keys_nothing_listens(uri: str, tmp_path: Path) -> None:
    child = BookieChild(tmp_path / "bookie", uri)
    with child.running() as process:
        assert set(child.facts) == {"id", "pid"}
        assert listening_ports(process.pid) == {child.port}


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports that a process listens at."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = link.readlink().name if link.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [
        line.split() for path in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{path}").read_text().splitlines()
    ]
    return {int(row[1].split(":")[1], 16) for row in rows[1:] if len(row) > 9 and row[3] == "0A" and row[9] in inodes}
