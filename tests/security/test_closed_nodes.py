"""With `zkEnableSecurity=true` every node that the product creates in ZooKeeper is closed to other clients.

The reference lists what Apache leaves open: `idgen-long`, `lostBookieRecoveryDelay` and `disable`. A client that may
write there can make two ledgers share an id, or end all repairs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from bkspark.cli.__main__ import main
from bkspark.cli.zookeeper_process import HOST
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.errors import MetadataAccessDenied, NodeExists, NoSuchNode
from bkspark.log.attempts import AttemptStore
from bkspark.log.election import ELECTIONS_ROOT, Election
from bkspark.log.formats import LogHead, Publisher, SegmentFacts, SegmentOwner, deletion_node, log_path
from bkspark.log.heads import Change, HeadStore, NewNode
from bkspark.log.positions import BEGINNING
from bkspark.log.routing import DELTA_LEDGERS_MAX, Part, RoutedCommits
from bkspark.log.schemas import StoredSchema
from bkspark.log.store import LogStore
from bkspark.metadata import paths
from bkspark.metadata.acls import ALL, OPEN, Acl
from bkspark.metadata.bookie_plans import BookiePlan, BookiePlans
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.change_records import ChangeRecord, ChangeRecords
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.repair_reports import RepairReport, RepairReports
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.metadata.zookeeper import ZooKeeperTree
from bkspark.metadata.zookeeper_options import options_of
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView
from tests.security.closed_zookeeper import ClosedZooKeeper
from tests.security.creations import RecordedTree, in_source

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("closed zookeeper")]

OWN = (Acl("sasl", "bookkeeper", ALL),)
BOOKIE, OTHER = "127.0.0.1:3181", "127.0.0.1:3182"
SECONDS = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedZooKeeper]:
    with ClosedZooKeeper(tmp_path_factory.mktemp("closed")) as server:
        yield server


DECIDED = {
    ("bkspark/log/consumers.py", "_decide"): "consumers",
    ("bkspark/log/routing.py", "_recording"): "routed",
    ("bkspark/log/routing.py", "decide"): "log",
    ("bkspark/log/store.py", "_writer_ledger"): "times",
}
"""Functions that decide on what a change of a log's head creates, so that they are not among its callers; and where."""


async def nodes_of(tree: ZooKeeperTree, *roots: str) -> list[str]:
    """Return the paths of nodes and of all below them."""
    found, waiting = [], list(roots)
    while waiting:
        path = waiting.pop()
        try:
            waiting += [f"{path.rstrip('/')}/{name}" for name in await tree.children(path)]
        except NoSuchNode:
            continue
        found.append(path)
    return found


def ledger_on(*bookies: str) -> LedgerMetadata:
    """Return the metadata of an empty closed ledger."""
    return LedgerMetadata(
        ensemble_size=len(bookies),
        write_quorum=len(bookies),
        ack_quorum=1,
        state=LedgerState.CLOSED,
        last_entry=-1,
        length=0,
        fragments=(Fragment(0, tuple(bookies)),),
        password=b"",
    )


async def create_all_kinds(tree: ZooKeeperTree, uri: MetadataUri) -> None:
    """Create a node of every kind: of the cluster, bookies, ledgers, autorecovery, operators and logs."""
    registry = BookieRegistry(tree, uri)
    assert await registry.initialize_cluster()
    await registry.register(BOOKIE, BookieAddress("127.0.0.1", 3181))
    await registry.register(OTHER, BookieAddress("127.0.0.1", 3182), read_only=True)
    await registry.write_cookie(Cookie(BOOKIE, ("/j",), ("/l",), await registry.instance_id()), None)
    await registry.watch_read_only(lambda: None)
    # Ledgers: short ids, long ids from their own generator, and those of flat clusters.
    store = LedgerStore(tree, uri)
    ledger_id, _ = await store.create(ledger_on(OTHER))
    await store.create(ledger_on(BOOKIE), ledger_id=1 << 40)
    await tree.create(f"{uri.root}/{paths.LONG_ID_GENERATOR}")
    assert (await LedgerStore(tree, uri).create(ledger_on(BOOKIE)))[0] >> 32 == 1
    flat = MetadataUri(uri.hosts, f"{uri.root}-flat", LedgerManager.FLAT)
    await BookieRegistry(tree, flat).initialize_cluster()
    await LedgerStore(tree, flat).create(ledger_on(BOOKIE))
    # Autorecovery, and what operators tell it.
    repairs = UnderreplicationStore(tree, uri)
    await repairs.prepare()
    await repairs.mark(ledger_id, [BOOKIE], 1)
    assert await repairs.lock(5, BOOKIE)
    await repairs.set_enabled(False)
    await repairs.offer_lost_bookie_recovery_delay_s(1)
    await repairs.set_lost_bookie_recovery_delay_s(2)
    await repairs.set_all_checked_ms(3)
    await AuditorElection(tree, uri, BOOKIE).stand()
    reports = RepairReports(tree, uri)
    await reports.put(RepairReport("worker", 1))
    await reports.set_bytes_per_s(4)
    plans = BookiePlans(tree, uri)
    await plans.prepare()
    await plans.set(BookiePlan(BOOKIE, "maintenance", "operator", 1))
    await ChangeRecords(tree, uri).add(ChangeRecord(1, "command:operator", "a change"))
    async with LedgerMetadataView(tree, uri, BOOKIE).elsewhere(ledger_id):
        locks = f"{uri.root}/{paths.UNDERREPLICATION}/locks"
        assert len(await tree.children(locks)) == 2
    # Logs.
    heads = HeadStore(tree, uri.root)
    await heads.create("log")

    async def with_page(head: LogHead) -> Change[None]:
        return Change(replace(head), None, [NewNode("pages/0", b"")])

    await heads.change("log", with_page)
    await AttemptStore(heads).add("log", ledger_id, SegmentOwner("job", "job", partition=0))
    await heads.write_schema("log", StoredSchema("raw", "{}"))
    logs = LogStore(tree, uri.root)
    await logs.attempts.add("log", ledger_id + 1, SegmentOwner("writer", "w"))
    assert await logs.open_writer("log", ledger_id + 1, "00000000000000aa", []) == 0
    await logs.consumers.register("log", "etl", BEGINNING, 1000)
    # A routed commit of more ledgers than a delta names: the others are in a page.
    many = range(100, 100 + DELTA_LEDGERS_MAX + 1)
    for each in many:
        await logs.attempts.add("log", each, SegmentOwner("job", "job", partition=0))
    part = Part("log", tuple(SegmentFacts(each, 9, 1000) for each in many))
    assert await RoutedCommits(logs).publish([part], "job", Publisher("query", 0))
    election = Election(tree, f"{ELECTIONS_ROOT}/one", "this process")
    await election.win()
    # A log whose deletion an earlier build began, without the node that names the deleted log.
    await heads.create("deleted")

    async def with_deletion(head: LogHead) -> Change[None]:
        return Change(replace(head, is_deleted=True), None)

    await heads.change("deleted", with_deletion)
    deleted = (await heads.read("deleted", even_if_deleted=True)).head
    await tree.delete(f"{log_path('deleted')}/{deletion_node(deleted.log_id)}")
    await heads.mark_deleted("deleted")


def test_a_stranger_can_change_no_node_of_any_kind(server: ClosedZooKeeper) -> None:
    """A client of another user, and one without any: neither writes, deletes, adds, reads, or sets the list."""
    root = "/a/b/ledgers"
    roots = ("/a", "/bkspark")

    async def test() -> None:
        options = options_of(server.login())
        owner = RecordedTree(server.uri(root), options, 20.0, 20.0)
        await owner.connect()
        strangers = [await server.session(server.login("stranger")), await server.session()]
        try:
            await create_all_kinds(owner, server.uri(root))
            assert in_source() - owner.creating == set(DECIDED), "creations that this test leaves out"
            nodes = await nodes_of(owner, *roots)
            for folder in DECIDED.values():
                assert any(f"/{folder}/" in path for path in nodes)
            assert len(nodes) > 60
            lists = {path: (await owner.acl(path))[0] for path in nodes}
            assert {path: acls for path, acls in lists.items() if acls != OWN} == {}
            tried = 0
            for stranger in strangers:
                for path in nodes:
                    tried += await refused_attempts(stranger, path)
            assert tried == 5 * len(strangers) * len(nodes)
            assert sorted(await nodes_of(owner, *roots)) == sorted(nodes)
        finally:
            for tree in (owner, *strangers):
                await tree.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))


async def refused_attempts(tree: ZooKeeperTree, path: str) -> int:
    """Try all that changes a node, and to read it; return how many of these were refused."""
    attempts: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: tree.set(path, b"stranger", -1),
        lambda: tree.create(f"{path}/stranger"),
        lambda: tree.set_acl(path, OPEN, -1),
        lambda: tree.get(path),
    )
    refused = 0
    for attempt in attempts:
        with pytest.raises(MetadataAccessDenied):
            await attempt()
        refused += 1
    # The node above a root is not ours: it lets everyone delete what is empty.
    kind = NodeExists if path.count("/") == 1 else MetadataAccessDenied
    with pytest.raises(kind):
        await tree.delete(path)
    return refused + 1


def test_nodes_are_open_without_the_key_as_apaches(server: ClosedZooKeeper) -> None:
    async def test() -> None:
        tree = await server.session(server.login(closes=False))
        try:
            uri = server.uri("/open/ledgers")
            await BookieRegistry(tree, uri).initialize_cluster()
            assert {(await tree.acl(path))[0] for path in await nodes_of(tree, "/open")} == {OPEN}
        finally:
            await tree.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))


def test_further_lists_let_readers_read(server: ClosedZooKeeper) -> None:
    """CREATOR_ALL knows one identity; a user with an entry of its own may read, and nothing else."""

    async def test() -> None:
        keys = server.login() | {"zkFurtherAcls": "sasl:stranger:r"}
        owner, reader, anonymous = (
            await server.session(keys),
            await server.session(server.login("stranger")),
            await server.session(),
        )
        try:
            uri = server.uri("/shared/ledgers")
            await BookieRegistry(owner, uri).initialize_cluster()
            ledger_id, _ = await LedgerStore(owner, uri).create(ledger_on(BOOKIE))
            assert (await LedgerStore(reader, uri).read(ledger_id)).metadata.write_quorum == 1
            with pytest.raises(MetadataAccessDenied):
                await LedgerStore(reader, uri).delete(ledger_id)
            with pytest.raises(MetadataAccessDenied):
                await LedgerStore(anonymous, uri).read(ledger_id)
        finally:
            for tree in (owner, reader, anonymous):
                await tree.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))


@pytest.mark.parametrize("manager", ["hierarchical", "longhierarchical", "flat"])
def test_ids_are_skipped_in_a_closed_cluster_for_its_own_clients_alone(
    server: ClosedZooKeeper, manager: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a restore the counters of ids belong to the cluster's user: others neither change them nor make an id."""
    root = f"/skipped-{manager}/ledgers"
    above = (1 << 31) - 2 if manager != "flat" else 70
    uri = f"zk+{manager}://{HOST}:{server.port}{root}"

    async def begin() -> None:
        owner = await server.session(server.login())
        await BookieRegistry(owner, MetadataUri.parse(uri)).initialize_cluster()
        await owner.close()

    async def check() -> None:
        owner, other = await server.session(server.login()), await server.session(server.login())
        strangers = [await server.session(server.login("stranger")), await server.session()]
        try:
            nodes = await nodes_of(owner, f"/skipped-{manager}")
            assert manager == "flat" or f"{root}/{paths.LONG_ID_GENERATOR}/HOB-0000000001" in nodes
            assert {(await owner.acl(path))[0] for path in nodes} == {OWN}
            # The command's session has ended; another one of the same user creates ledgers.
            ledger_id, _ = await LedgerStore(other, MetadataUri.parse(uri)).create(ledger_on(BOOKIE))
            assert ledger_id > above
            for stranger in strangers:
                for path in nodes:
                    await refused_attempts(stranger, path)
                with pytest.raises(MetadataAccessDenied):
                    await LedgerStore(stranger, MetadataUri.parse(uri)).skip_ids(above + 5)
        finally:
            for tree in (owner, other, *strangers):
                await tree.close()

    asyncio.run(asyncio.wait_for(begin(), SECONDS))
    keys = server.directory / f"{manager}.conf"
    keys.write_text("".join(f"{key}={value}\n" for key, value in server.login().items()))
    command = ["cluster", "skip-ids", "--uri", uri, "--client-config", str(keys), "--above", str(above), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["new_ids_above"] >= above
    asyncio.run(asyncio.wait_for(check(), SECONDS))


def test_election_without_the_right_fails_and_does_not_wait(server: ClosedZooKeeper) -> None:
    async def test() -> None:
        owner, stranger = await server.session(server.login()), await server.session()
        try:
            await owner.create("/elections/one", make_parents=True)
            with pytest.raises(MetadataAccessDenied):
                await Election(stranger, "/elections/one", "stranger").win()
        finally:
            await owner.close()
            await stranger.close()

    asyncio.run(asyncio.wait_for(test(), SECONDS))
