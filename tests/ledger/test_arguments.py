"""Every public call refuses bad arguments, by name, before any I/O: there is no server at the client's address."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.client import Client, SnapshotReader
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.entries import as_batch
from bkspark.errors import ConfigurationError
from bkspark.ledger import arguments
from bkspark.log import SegmentOwner

NOT_AN_ID = (-1, "1", None, 1.5, True, 2**63)


def refused(call, name):
    """The call on a client that has no connection ends with an error that names the argument."""

    async def run():
        result = call(Client("zk://127.0.0.1:1/ledgers"))
        await (anext(result) if hasattr(result, "__anext__") else result)

    with pytest.raises(ConfigurationError, match=name):
        asyncio.run(run())


@pytest.mark.parametrize("method", ["open", "recover", "metadata", "delete"])
@pytest.mark.parametrize("ledger_id", NOT_AN_ID)
def test_invalid_ledger_id_is_refused(method, ledger_id):
    refused(lambda client: getattr(client, method)(ledger_id), "ledger_id")


@pytest.mark.parametrize("name", ["ensemble", "write_quorum", "ack_quorum"])
@pytest.mark.parametrize("value", [0, -1, "3", None, 2.0, 65])
def test_invalid_number_of_bookies_is_refused(name, value):
    refused(lambda client: client.create(**{name: value}), name)
    refused(lambda client: client.log("x").open_for_writing(**{name: value}), name)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"a": 5}, "'a'"),
        ({5: b"x"}, "5"),
        ([1], "metadata"),
        ("text", "metadata"),
        ({"\ud800": b""}, "Unicode"),
        ({"a": "\ud800"}, "Unicode"),
    ],
)
def test_custom_metadata_that_cannot_be_stored(metadata, said):
    refused(lambda client: client.create(metadata=metadata), said)
    refused(lambda client: client.log("x").open_for_writing(metadata=metadata), said)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda client: client.create(ensemble=2, write_quorum=3), "E >= Qw >= Qa >= 1"),
        (lambda client: client.create(ledger_type="X"), "ledger_type"),
        (lambda client: client.create(ledger_type=None), "ledger_type"),
        (lambda client: client.create(ledger_id=-5), "ledger_id"),
        (lambda client: client.create(ledger_type="VD_JOURNAL", relaxed={"striped": True}), "relaxed"),
        (lambda client: client.log("x").election(""), "identity"),
        (lambda client: client.log("x").election(7), "identity"),
        (lambda client: client.log("x").open_for_writing(ledger_type="X"), "ledger_type"),
        (lambda client: client.log("x").open_for_writing(roll_bytes=0), "roll_bytes"),
        (lambda client: client.log("x").open_for_writing(roll_seconds=0), "roll_seconds"),
        (lambda client: client.log("x").read(start="yesterday"), "start"),
        (lambda client: client.log("x").read(end=7), "end"),
        (lambda client: client.log("x").read(batch_bytes=0), "batch_bytes"),
        (lambda client: client.log("x").follow(start=None), "start"),
        (lambda client: client.log("x").follow(batch_bytes="1m"), "batch_bytes"),
        (lambda client: client.log("x").truncate("{}"), "before"),
        (lambda client: client.log("x").at_time("noon"), "moment"),
        (lambda client: client.log("x").vacuum(older_than_s=float("nan")), "older_than_s"),
        (lambda client: client.log("x").vacuum(older_than_s=None), "older_than_s"),
        # Attempts that began before a time to come are all that live now.
        (lambda client: client.log("x").vacuum(older_than_s=-1), "older_than_s"),
        # Text that reads "false" would have fenced the writer.
        (lambda client: client.open(1, recover="false"), "recover"),
        (lambda client: client.open(1, recover=0), "recover"),
        (lambda client: client.log("x").create(exist_ok="no"), "exist_ok"),
        (lambda client: client.log("x").publish(5), "ledgers"),
        (lambda client: client.log("x").publish([5]), "ledgers"),
        (lambda client: client.log("x").publish([], publisher="q"), "publisher"),
        (lambda client: client.log("x").publish([], publisher=("q", -1)), "epoch"),
        (lambda client: client.log("x").publish([], only_if_empty=1), "only_if_empty"),
        (lambda client: client.log("x").publish([], shared=[-1]), "shared"),
        (lambda client: client.log("x").overwrite(None), "ledgers"),
        (lambda client: client.log("x").has_published(None), "publisher"),
        (lambda client: client.log("x").forget_published("1"), "ledger_id"),
        (lambda client: client.log("x").discard(None), "owner_id"),
        (lambda client: client.log("x").discard("job", up_to_epoch=-1), "up_to_epoch"),
        (lambda client: client.log("x").retire(None), "ledger_ids"),
        (lambda client: client.log("x").retire([-1]), "ledger_ids"),
        (lambda client: client.log("x").retire_shared(created_before_ms=None), "created_before_ms"),
        (lambda client: client.log("x").retire_older(1, -1.0), "age_s"),
        (lambda client: client.log("x").create_attempt("me"), "owner"),
        (lambda client: client.log("x").create_attempt(SegmentOwner("job", "j"), {}), "options"),
    ],
)
def test_other_arguments(call, name):
    refused(call, name)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"ledger_id": -1}, "ledger_id"),
        ({"metadata": b""}, "metadata"),
        ({"addresses": None}, "addresses"),
        ({"password": "text"}, "password"),
        ({"net": {}}, "net"),
        ({"encryption": b"key"}, "encryption"),
        ({"first_entry": -1}, "first_entry"),
        ({"end_entry": "9"}, "end_entry"),
        ({"batch_bytes": 0}, "batch_bytes"),
    ],
)
def test_snapshot_reader_refuses_bad_arguments(given, name):
    """Entry -1 would have asked bookies for their last entry."""
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),))
    good = {"ledger_id": 1, "metadata": metadata, "addresses": {}, "password": b""} | given
    span = {"first_entry": 0, "end_entry": 9} | {key: good.pop(key) for key in set(given) - {*_OF_SNAPSHOT}}

    async def read():
        return [batch async for batch in SnapshotReader(**good).batches(**span)]

    with pytest.raises(ConfigurationError, match=name):
        asyncio.run(read())


_OF_SNAPSHOT = ("ledger_id", "metadata", "addresses", "password", "net", "encryption")


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 300])
def test_invalid_log_name_is_refused(name):
    with pytest.raises(ConfigurationError):
        Client("zk://127.0.0.1:1/ledgers").log(name)


def test_numbers_of_other_libraries_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert arguments.whole_number("ledger_id", numpy.int64(5)) == 5
    assert type(arguments.whole_number("ledger_id", numpy.int64(5))) is int


@pytest.mark.parametrize("name", ["net", "writer", "placement", "uri", "digest", "wire_protocol", "password", "tree"])
@pytest.mark.parametrize("value", [5, {"read_timeout_s": 1}, object()])
def test_argument_of_a_client_of_another_type(name, value):
    named = {"uri": "zk://127.0.0.1:1/ledgers", name: value}
    with pytest.raises(ConfigurationError, match="URI" if name == "uri" else name.replace("_", ".")):
        Client(named.pop("uri"), **named)


def test_entry_may_have_as_many_bytes_as_the_limit_says():
    limit = 100
    for sizes in ([], [0], [100], [60, 60, 100]):
        arguments.check_entry_sizes(as_batch([bytes(size) for size in sizes]), limit)
    for sizes in ([101], [1, 101, 1]):
        with pytest.raises(ValueError, match="an entry of 101 bytes is above the limit of 100"):
            arguments.check_entry_sizes(as_batch([bytes(size) for size in sizes]), limit)
