"""Options bookkeeper.* are settings of the client: checked on the driver, and used there and in tasks."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from bkspark import Options
from bkspark.errors import ConfigurationError, MetadataError
from bkspark.spark.client_settings import SETTINGS, client_settings
from bkspark.spark.connection import connect
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader

if TYPE_CHECKING:
    from bkspark.blocking import Client
    from tests.cluster import Cluster

URI = "zk://h:1/ledgers"


def test_settings_have_the_names_and_units_of_apache() -> None:
    found = client_settings(
        {
            "readTimeout": "7",
            "addentrytimeout": "1m",
            "speculativeReadTimeout": "250",
            "clientConnectTimeoutMillis": "2s",
            "localReads": "false",
            "minNumRacksPerWriteQuorum": "1",
            "zkTimeout": "30000",
        }
    )
    assert (found.net.read_timeout_s, found.net.speculative_read_s, found.net.connect_timeout_s) == (7.0, 0.25, 2.0)
    assert found.writer.add_timeout_s == 60.0
    assert not found.net.local_reads
    assert found.placement.min_racks_per_write_quorum == 1
    assert found.zookeeper.timeout_s == 30.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0), ("1.5", 1.5), ("250ms", 0.25), ("250 MS", 0.25), ("7s", 7.0), (" 7S ", 7.0), ("2m", 120.0),
        ("2M", 120.0), ("1h", 3600.0), ("1H", 3600.0), ("1d", 86_400.0), ("1D", 86_400.0), ("0.5 d", 43_200.0),
    ],
)  # fmt: skip
def test_time_takes_the_units_of_all_options_in_any_case(text: str, seconds: float) -> None:
    assert client_settings({"readTimeout": text}).net.read_timeout_s == seconds


@pytest.mark.parametrize("name", ["readTimeout", "explicitLacInterval", "zkTimeout", "bookieQuarantineTimeSeconds"])
@pytest.mark.parametrize("value", ["", " ", "-1", "-1s", "1.s", ".5s", "1e3", "1,5", "1 week", "1ss", "inf", "nan"])
def test_what_is_not_a_time_is_refused_by_name_and_value(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option 'bookkeeper.{name}' is {value!r}, which is not"):
        client_settings({name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("readTimeout", "soon", r"option 'bookkeeper.readTimeout' is 'soon', which is not a time"),
        ("readTimeout", "0", r"'bookkeeper.readTimeout' is '0', which is not from 0.001 to 86400 seconds"),
        ("readTimeout", "90h", r"'bookkeeper.readTimeout' is '90h', which is not from 0.001 to 86400 seconds"),
        ("zkTimeout", "9999999999", r"'bookkeeper.zkTimeout' is '9999999999', which is not from 0.5 to 3600 seconds"),
        ("minNumRacksPerWriteQuorum", "9999999999", r"'9999999999', which is not from \d+ to \d+"),
        ("readTimeuot", "5", "did you mean 'bookkeeper.readTimeout'"),
        ("zkLedgersRootPath", "/x", "settings of the client are bookkeeper.readTimeout"),
        ("localReads", "maybe", "neither true nor false"),
        ("zkTimeout", "10", r"'bookkeeper.zkTimeout' is '10', which is not from 0.5 to 3600 seconds"),
    ],
)
def test_wrong_settings_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SourceOptions.parse({"uri": URI, "log": "a", f"bookkeeper.{name}".lower(): value})


@pytest.mark.parametrize("name", ["readTimeout", "readTimeuot", "bookeeper.readTimeout", "bookkeper.readtimeout"])
def test_a_setting_without_its_prefix_or_with_a_misspelt_one_is_found(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown option '{name}': did you mean 'bookkeeper.readTimeout'"):
        SourceOptions.parse({"uri": URI, "log": "a", name: "5"})


def test_the_name_of_apaches_key_leads_to_the_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option 'zkTimeout': did you mean 'bookkeeper.zkTimeout'"):
        SourceOptions.parse({"uri": URI, "log": "a", "zkTimeout": "5000"})


def test_zookeeper_is_waited_for_as_long_as_the_setting_says() -> None:
    """An address where nothing answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        given = {"uri": uri, "log": "a", "bookkeeper.zkTimeout": "500ms"}
        reader = BookKeeperReader(StructType().add("value", "binary"), SourceOptions.parse(given))
        with pytest.raises(MetadataError, match=r"waited 0.5 s"):
            reader.partitions()


def test_typed_options_take_a_mapping_of_settings() -> None:
    options = Options(uri=URI, log="a", bookkeeper={"readTimeout": "3s", "localReads": "false"})
    assert options["bookkeeper.readTimeout"] == "3s"
    for use in (SourceOptions.for_batch_read, SourceOptions.for_stream_read, SourceOptions.for_batch_write):
        assert use(SourceOptions.parse(options)).client is not None


@pytest.mark.cluster
def test_tasks_read_with_the_settings(cluster: Cluster, client: Client) -> None:
    with client.log("client-settings").open_for_writing() as writer:
        writer.append_many([bytes(1000)] * 3000)
    given = {
        "uri": cluster.uri,
        "log": "client-settings",
        "bookkeeper.readTimeout": "9",
        "bookkeeper.localReads": "false",
    }
    reader = BookKeeperReader(StructType().add("value", "binary"), SourceOptions.parse(given))
    (partition,) = reader.partitions()
    assert partition.net.read_timeout_s == 9.0  # type: ignore[attr-defined]
    assert sum(batch.num_rows for batch in reader.read(partition)) == 3000


@pytest.mark.cluster
def test_reads_with_other_settings_have_a_client_of_their_own(cluster: Cluster) -> None:
    """The settings of the first read of a process do not decide for those after it."""

    def client(**given: str) -> object:
        settings = {f"bookkeeper.{name}": value for name, value in given.items()}
        return connect(SourceOptions.parse({"uri": cluster.uri, "log": "a", **settings}))

    plain, slow = client(), client(readTimeout="90")
    assert client() is plain
    assert client(readTimeout="90s") is slow
    assert len({id(each) for each in (plain, slow, client(zkTimeout="9s"), client(addEntryTimeout="9"))}) == 4


def test_the_page_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for name in SETTINGS:
        assert f"| `bookkeeper.{name}` |" in page
