"""Our HTTP API and metrics beside those of Apache's bookie: the same cluster and entries, endpoint by endpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from bkspark.blocking import Client
from bkspark.errors import NoSuchLedger
from tests.interop.pair import Pair, ask, different_metrics, families, running_pair, unlisted_metrics
from tests.interop.peer import Peer


@pytest.fixture(scope="module")
def pair(classpath: str, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(classpath, peer, tmp_path_factory.mktemp("http")) as pair:
        yield pair


def shape(value: object) -> object:
    """Return a JSON value with its names and types only; names that are ids of ledgers, bookies and files are alike."""
    if isinstance(value, Mapping):
        return {re.sub(r"[0-9.:a-f]{1,40}(?=[(.)]|$)", "#", str(name)): shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(member) for member in value[:1]]
    return type(value).__name__ if not isinstance(value, (int, float)) or isinstance(value, bool) else "number"


def form(status: int, body: str) -> object:
    """Return what two answers have in common if they have the same form."""
    try:
        return status, shape(json.loads(body))
    except ValueError:
        return status, re.sub(r"[0-9.:]+", "#", body.strip()) if status == 200 else "text"


B, A, L = "/api/v1/bookie", "/api/v1/autorecovery", "/api/v1/ledger"
SAME = [
    ("GET", "/heartbeat", None),
    ("PUT", "/heartbeat", None),
    ("GET", f"{B}/info", None),
    ("GET", f"{B}/state", None),
    ("GET", f"{B}/is_ready", None),
    ("GET", f"{B}/sanity", None),
    ("GET", f"{B}/cluster_info", None),
    ("GET", f"{B}/list_bookies", None),
    ("GET", f"{B}/list_bookies?type=ro", None),
    ("GET", f"{B}/list_bookies?print_hostnames=true", None),
    ("GET", f"{B}/list_bookie_info", None),
    ("GET", f"{B}/state/readonly", None),
    ("GET", f"{B}/last_log_mark", None),
    ("GET", f"{B}/list_disk_file?file_type=journal", None),
    ("GET", f"{B}/list_disk_file?file_type=entrylog", None),
    ("GET", f"{B}/list_disk_file?file_type=nothing", None),
    ("GET", f"{B}/gc", None),
    ("GET", f"{B}/gc_details", None),
    ("GET", f"{B}/gc/suspend_compaction", None),
    ("PUT", f"{B}/gc/suspend_compaction", {"suspendMajor": True}),
    ("PUT", f"{B}/gc/suspend_compaction", {"suspendMinor": True}),
    ("PUT", f"{B}/gc/suspend_compaction", {"suspendMajor": False, "suspendMinor": False}),
    ("PUT", f"{B}/gc/suspend_compaction", {"suspendMajor": True, "suspendMinor": True}),
    ("GET", f"{B}/gc/suspend_compaction", None),
    ("PUT", f"{B}/gc/resume_compaction", {"resumeMajor": True, "resumeMinor": True}),
    ("PUT", f"{B}/gc/resume_compaction", {"resumeMinor": True}),
    ("PUT", f"{B}/gc/resume_compaction", {"nothing": True}),
    ("PUT", f"{B}/gc/resume_compaction", None),
    ("GET", f"{B}/gc/resume_compaction", None),
    ("PUT", f"{B}/gc", None),
    ("PUT", f"{B}/gc", {"forceMajor": True, "forceMinor": False}),
    ("PUT", f"{B}/gc", {"forceMajor": False}),
    ("PUT", f"{B}/gc", {"forceMajor": False, "forceMinor": False}),
    ("PUT", f"{B}/gc", {}),
    ("POST", f"{B}/gc", None),
    ("PUT", f"{B}/state", None),
    ("PUT", f"{B}/info", None),
    ("PUT", f"{B}/is_ready", None),
    ("POST", f"{B}/list_bookies", None),
    ("PUT", f"{B}/state/readonly", {"readOnly": True}),
    ("GET", f"{B}/state", None),
    ("GET", f"{B}/sanity", None),
    ("PUT", f"{B}/state/readonly", {"readOnly": "false"}),
    ("GET", f"{L}/list", None),
    ("GET", f"{L}/list?print_metadata=true&decode_meta=true", None),
    ("GET", f"{L}/list?print_metadata=true&page=1", None),
    ("GET", f"{L}/list?print_metadata=true&decode_meta=true&page=2", None),
    ("GET", f"{L}/list?print_metadata=true&decode_meta=true&page=-1", None),
    ("GET", f"{L}/metadata?ledger_id=0", None),
    ("GET", f"{L}/metadata?ledger_id=1", None),
    ("GET", f"{L}/metadata?ledger_id=77", None),
    ("GET", f"{L}/metadata?ledger_id=x", None),
    ("GET", f"{L}/metadata", None),
    ("GET", f"{L}/read?ledger_id=0", None),
    ("GET", f"{L}/read?ledger_id=0&start_entry_id=5&end_entry_id=7", None),
    ("GET", f"{L}/read?ledger_id=0&page=1", None),
    ("GET", f"{L}/read?ledger_id=0&page=1&start_entry_id=5&end_entry_id=7", None),
    ("GET", f"{L}/read?ledger_id=0&page=2&start_entry_id=5", None),
    ("GET", f"{L}/read?ledger_id=0&page=2&end_entry_id=5", None),
    ("GET", f"{L}/read?ledger_id=0&page=0&end_entry_id=1", None),
    ("GET", f"{L}/read?ledger_id=0&page=-1&end_entry_id=1", None),
    ("GET", f"{L}/read?ledger_id=0&page=3000000000", None),
    ("GET", f"{L}/read?ledger_id=0&start_entry_id=7&end_entry_id=5", None),
    ("GET", f"{L}/read", None),
    ("DELETE", f"{L}/delete", None),
    ("GET", f"{L}/delete?ledger_id=1", None),
    ("DELETE", f"{L}/delete?ledger_id=77", None),
    ("GET", f"{A}/status", None),
    ("PUT", f"{A}/status?enabled=false", None),
    ("GET", f"{A}/status", None),
    ("PUT", f"{A}/status?enabled=TRUE", None),
    ("PUT", f"{A}/status", None),
    ("GET", f"{A}/list_under_replicated_ledger", None),
    ("GET", f"{A}/who_is_auditor", None),
    ("GET", f"{A}/lost_bookie_recovery_delay", None),
    ("PUT", f"{A}/lost_bookie_recovery_delay", {"delay_seconds": 17}),
    ("GET", f"{A}/lost_bookie_recovery_delay", None),
    ("PUT", f"{A}/lost_bookie_recovery_delay", {}),
    ("PUT", f"{A}/lost_bookie_recovery_delay", None),
    ("PUT", f"{A}/trigger_audit", None),
    ("GET", f"{A}/trigger_audit", None),
    ("PUT", f"{A}/decommission", None),
    ("PUT", f"{A}/decommission", {}),
    ("PUT", f"{A}/decommission", {"bookie_src": "127.0.0.9:1"}),
    ("PUT", f"{A}/bookie", {"bookie_src": ["127.0.0.9:1"], "delete_cookie": False}),
    ("PUT", f"{A}/bookie", None),
    ("GET", "/api/v1/nothing", None),
    ("PUT", "/metrics", None),
]
"""Requests in order; each is sent to Apache's bookie and to ours, and answered in the same form."""


MISTAKES = [
    ("PUT", f"{B}/state/readonly", None, 500, 400),
    ("PUT", f"{B}/gc/suspend_compaction", {"suspendMajor": "true"}, 500, 400),
    ("PUT", f"{B}/gc", {"forceMajor": "x"}, 200, 400),
    ("PUT", "/api/v1/config/server_config", {"gcWatTime": "x"}, 200, 400),
]
"""Requests that are wrong, with Apache's status and ours: a mistake of the client is not an error of the server, and
what has no effect is not a success."""


@pytest.mark.interop
@pytest.mark.parametrize(("method", "path", "body", "apaches", "ours"), MISTAKES)
def test_mistakes_of_a_client_are_called_so(
    pair: Pair, method: str, path: str, body: object, apaches: int, ours: int
) -> None:
    assert (ask(pair.apache_port, method, path, body)[0], ask(pair.our_port, method, path, body)[0]) == (apaches, ours)


@pytest.mark.interop
def test_endpoints_answer_as_apaches(pair: Pair) -> None:
    different = []
    for method, path, body in SAME:
        apache = ask(pair.apache_port, method, path, body)
        ours = ask(pair.our_port, method, path, body)
        if form(*apache) != form(*ours):
            different.append(f"{method} {path} {body}\n  Apache's: {apache}\n  ours:     {ours}")
    assert not different, "\n".join(different)


@pytest.mark.interop
def test_facts_of_the_cluster_are_the_same(pair: Pair) -> None:
    for path in (
        f"{B}/cluster_info",
        f"{B}/list_bookies",
        f"{B}/list_bookies?print_hostnames=true",
        f"{L}/list",
        f"{L}/read?ledger_id=0&page=1",
        f"{L}/read?ledger_id=0&page=1&start_entry_id=5&end_entry_id=7",
    ):
        assert json.loads(ask(pair.apache_port, "GET", path)[1]) == json.loads(ask(pair.our_port, "GET", path)[1]), path
    apache = json.loads(ask(pair.apache_port, "GET", f"{L}/metadata?ledger_id=0")[1])["0"]
    ours = json.loads(ask(pair.our_port, "GET", f"{L}/metadata?ledger_id=0")[1])["0"]
    assert apache.keys() == ours.keys()
    assert {name for name in apache if apache[name] != ours[name]} <= {"password"}
    assert ours["password"] == ""


@pytest.mark.interop
def test_texts_of_one_compaction_and_of_both_are_the_same(pair: Pair) -> None:
    for verb in ("suspend", "resume"):
        for levels in (["Minor"], ["Major"], ["Major", "Minor"]):
            body = {f"{verb}{level}": True for level in levels}
            path = f"{B}/gc/{verb}_compaction"
            apache, ours = (ask(port, "PUT", path, body)[1] for port in (pair.apache_port, pair.our_port))
            # Apache's bookie names its address as well.
            apache = re.sub(r"Bookie Server listening on \S+ with id ", "", apache)
            assert apache.replace(pair.apache, pair.ours) == ours


@pytest.mark.interop
def test_status_file_has_apaches_form(pair: Pair) -> None:
    for port, directory in ((pair.apache_port, pair.apache_dir), (pair.our_port, pair.our_dir)):
        for read_only, form in ((True, r"1,READ_ONLY,\d{13},true\n"), (False, r"1,READ_WRITE,\d{13},false\n")):
            assert ask(port, "PUT", f"{B}/state/readonly", {"readOnly": read_only})[0] == 200
            text = (directory / "ledgers" / "current" / "BOOKIE_STATUS").read_text()
            assert re.fullmatch(form, text), (port, text)


NAMES = [
    # With the sorted storage, in which Apache's garbage collection has names of its own.
    "bookie_SERVER_STATUS",
    "bookie_WRITE_BYTES",
    "bookie_READ_BYTES",
    "bookkeeper_server_ADD_ENTRY",
    "bookkeeper_server_ADD_ENTRY_REQUEST",
    "bookkeeper_server_READ_ENTRY",
    "bookkeeper_server_READ_ENTRY_REQUEST",
    "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
    "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
    "bookkeeper_server_ADD_ENTRY_BLOCKED",
    "bookkeeper_server_READ_ENTRY_BLOCKED",
    "bookkeeper_server_thread_executor_queue",
    "bookkeeper_server_thread_executor_completed",
    "bookkeeper_server_thread_executor_tasks_completed",
    "bookkeeper_server_thread_executor_tasks_rejected",
    "bookkeeper_server_thread_executor_tasks_failed",
    "bookkeeper_server_GET_BOOKIE_INFO",
    "bookkeeper_server_READ_LAC",
    "bookie_journal_JOURNAL_ADD_ENTRY",
    "bookie_journal_JOURNAL_SYNC",
    "bookie_journal_JOURNAL_QUEUE_SIZE",
    "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
    "bookie_journal_JOURNAL_WRITE_BYTES",
    "bookie_journal_JOURNAL_FLUSH_LATENCY",
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES",
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES",
    "bookie_ledger_writable_dirs",
    "bookie_ledger_num_dirs",
    "bookie_BOOKIE_ADD_ENTRY",
    "bookie_BOOKIE_READ_ENTRY",
    "bookkeeper_server_READ_LAC_REQUEST",
    "bookkeeper_server_BookieReadThreadPool_threads",
    "bookie_gc_ENTRY_LOG_COMPACT_RATIO",
    "bookie_gc_DELETED_LEDGER_TOTAL",
    "bookie_gc_MAJOR_COMPACTION_TOTAL",
    "bookie_gc_MINOR_COMPACTION_TOTAL",
    "bookie_gc_RECLAIMED_DELETION_SPACE_BYTES",
    "bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES",
    "bookie_gc_ACTIVE_ENTRY_LOG_TOTAL",
    "bookie_gc_ACTIVE_LEDGER_TOTAL",
    "bookie_gc_ENTRY_LOG_SPACE_BYTES",
    "bookie_JOURNAL_DIRS",
    "bookie_gc_entry_log_usage_buckets_le_10",
]


@pytest.mark.interop
def test_metrics_have_apaches_names_kinds_and_labels(pair: Pair) -> None:
    different = different_metrics(pair, NAMES)
    assert not different, "\n".join(different)
    apache, ours = families(pair.apache_port), families(pair.our_port)
    usage = re.compile("bookie_ledger_dir_.*_usage")
    assert len([name for name in ours if usage.fullmatch(name)]) == len(
        [name for name in apache if usage.fullmatch(name)]
    )


@pytest.mark.interop
def test_metrics_of_apaches_that_are_not_here_are_listed(pair: Pair) -> None:
    missing = unlisted_metrics(pair)
    assert not missing, " ".join(missing)


@pytest.mark.interop
def test_apaches_bookie_reads_our_registration_with_its_http_endpoint(pair: Pair) -> None:
    for port in (pair.apache_port, pair.our_port):
        assert pair.ours in json.loads(ask(port, "GET", f"{B}/list_bookies")[1])


@pytest.mark.interop
def test_each_deletes_a_ledger_and_shows_its_keys(pair: Pair) -> None:
    with Client(pair.uri) as client:
        ledgers = [client.create(ensemble=2, write_quorum=2, ack_quorum=2) for _ in range(2)]
        answers = []
        for port, writer in zip((pair.apache_port, pair.our_port), ledgers):
            writer.close()
            answers.append(form(*ask(port, "DELETE", f"{L}/delete?ledger_id={writer.ledger_id}")))
            with pytest.raises(NoSuchLedger):
                client.metadata(writer.ledger_id)
        assert answers[0] == answers[1]
    for port in (pair.apache_port, pair.our_port):
        status, text = ask(port, "GET", "/api/v1/config/server_config")
        keys = json.loads(text)
        assert (status, keys["httpServerPort"], keys["persistBookieStatusEnabled"]) == (200, str(port), "true")
