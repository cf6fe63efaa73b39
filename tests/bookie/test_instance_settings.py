"""The keys of each of several bookies of a host: ports, directories and ids never meet."""

from __future__ import annotations

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.settings.configuration import configure
from bookie_service.settings.instances import INSTANCES_MAX, instance_settings

BASE = {"metadataServiceUri": "zk://h:1/ledgers", "journalDirectories": "/j", "ledgerDirectories": "/a,/b"}

PROMETHEUS = {"statsProviderClass": "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"}


def of(number: int, count: int, **values: str) -> dict[str, str]:
    return instance_settings(BASE | values, number, count)


def test_ports_rise_and_directories_get_a_folder_of_the_instance() -> None:
    assert of(1, 2) == {
        "bookiePort": "3181",
        "journalDirectories": "/j/instance-1",
        "ledgerDirectories": "/a/instance-1,/b/instance-1",
    }
    assert of(2, 2)["bookiePort"] == "3182"
    assert of(2, 2, bookiePort="4000", httpServerEnabled="true")["httpServerPort"] == "8081"


@pytest.mark.parametrize(
    ("served", "key", "first"),
    [({"httpServerEnabled": "true"}, "httpServerPort", 8080), (PROMETHEUS, "prometheusStatsHttpPort", 8000)],
)
def test_each_instance_serves_its_own_metrics(served: dict[str, str], key: str, first: int) -> None:
    """ "So are `httpServerPort` and `prometheusStatsHttpPort` if they are used"."""
    assert key not in of(2, 3)
    assert [of(number, 3, **served)[key] for number in (1, 2, 3)] == [str(first + each) for each in range(3)]


def test_metrics_that_are_served_at_the_port_of_the_api_stay_there() -> None:
    """Otherwise the second instance would serve them at the port of the first one's API, and could not start."""
    shared = PROMETHEUS | {"httpServerEnabled": "true", "prometheusStatsHttpPort": "8080"}
    for number in (1, 2, 3):
        http = configure({**BASE, **shared, **of(number, 3, **shared)}).http
        assert (http.port, http.metrics_port, http.has_metrics_port) == (8079 + number, 8079 + number, False)


def test_placeholder_gives_each_instance_a_value_of_its_own() -> None:
    found = of(
        3, 4, ledgerDirectories="/disk{instance}/ledgers", bookieId="host-a-{instance}", bookiePort="410{instance}"
    )
    assert found["ledgerDirectories"] == "/disk3/ledgers"
    assert found["bookieId"] == "host-a-3"
    assert found["bookiePort"] == "4103"
    assert found["journalDirectories"] == "/j/instance-3"


def test_derived_keys_are_a_usable_configuration() -> None:
    for number in (1, 2, 3):
        found = configure({**BASE, **of(number, 3)})
        assert found.address.port == 3180 + number
        assert found.service.journal_directories == (f"/j/instance-{number}",)


def test_older_name_of_the_journal_is_placed_as_the_newer_one() -> None:
    values = {key: value for key, value in BASE.items() if key != "journalDirectories"}
    found = instance_settings(values | {"journalDirectory": "/fast{instance}"}, 2, 2)
    assert found["journalDirectories"] == "/fast2"
    assert configure({**values, "journalDirectory": "/fast1", **found}).service.journal_directories == ("/fast2",)


def test_a_port_that_is_chosen_at_the_start_stays_so() -> None:
    assert "bookiePort" not in of(2, 3, bookiePort="0", allowEphemeralPorts="true")


@pytest.mark.parametrize(
    ("values", "number", "count", "reason"),
    [
        ({}, 1, 0, "--instances 0 must lie between 1 and 64"),
        ({}, 1, INSTANCES_MAX + 1, "--instances 65 must lie"),
        ({}, 3, 2, "--instance 3 must lie between 1 and 2"),
        ({"bookieId": "one"}, 1, 2, "bookieId=one: 2 instances cannot share an id"),
        ({"bookiePort": "65535"}, 1, 2, "instance 2 would use port 65536, above 65535"),
        (
            {"bookiePort": "8079", "httpServerEnabled": "true"},
            1,
            2,
            "bookiePort of instance 2 and httpServerPort of instance 1 are the same port 8080",
        ),
        ({"ledgerDirectories": "/d{instance},/d1{instance}"}, 1, 11, "the same directory /d11"),
        ({"bookiePort": "x{instance}"}, 1, 2, "bookiePort=x1"),
    ],
)
def test_settings_with_which_two_instances_would_meet_are_refused(
    values: dict[str, str], number: int, count: int, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        of(number, count, **values)
    assert reason in str(refused.value)


def test_journal_and_ledgers_of_one_instance_may_share_a_directory() -> None:
    assert of(2, 2, journalDirectories="/a", ledgerDirectories="/a")["journalDirectories"] == "/a/instance-2"
