"""Apache's configurations start our bookie: what Apache's bookies take is taken, or raised or lowered with one line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bookie_service.settings.configuration import configure, load
from tests.bookie.apache_configurations import (
    BK_SERVER,
    BK_SERVER_SHOWN,
    CORNERS,
    JUNIT,
    PULSAR,
    STANDALONE,
    junit_cases,
)
from tests.bookie.child import STOP_S, BookieChild
from tests.bookie.serving import Serving, stored

CASES = junit_cases()


@pytest.mark.parametrize(
    ("text", "noted"),
    [(BK_SERVER, 0), (BK_SERVER + BK_SERVER_SHOWN, 1), (PULSAR, 0)],
    ids=["bk_server.conf", "bk_server.conf with what it shows", "Pulsar's bookkeeper.conf"],
)
def test_published_files_are_taken_as_they_are(tmp_path: Path, text: str, noted: int) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text(text)
    configuration = load(path, [])
    assert len(configuration.notes) == noted
    assert configuration.dangers == ()


def test_file_of_a_broker_and_its_bookie_is_taken_with_what_it_costs(tmp_path: Path) -> None:
    path = tmp_path / "standalone.conf"
    path.write_text(STANDALONE)
    configuration = load(path, [])
    assert [line.partition("=")[0] for line in configuration.dangers] == ["journalSyncData"]
    assert {"brokerServicePort", "tlsCertRefreshCheckDurationSec"} <= set(configuration.unused_keys)


@pytest.mark.parametrize("key", ["authenticationEnabled", "authorizationEnabled", "tlsEnabled"])
def test_file_whose_broker_is_protected_starts_no_bookie_that_is_not(tmp_path: Path, key: str) -> None:
    path = tmp_path / "standalone.conf"
    path.write_text(STANDALONE.replace(f"{key}=false", f"{key}=true"))
    with pytest.raises(ConfigurationError, match=f"'{key}' does not exist, and by its name it may protect something"):
        load(path, [])


@pytest.mark.parametrize(("key", "value", "settings"), CASES, ids=[f"{key}={value}" for key, value, _ in CASES])
def test_value_that_apaches_bookies_start_with_is_taken_or_adjusted_with_one_line(
    key: str, value: str, settings: dict[str, str]
) -> None:
    notes = configure(settings).notes
    about = [note for note in notes if note.startswith(f"{key}=")]
    assert len(about) <= 1
    assert {note.partition("=")[0] for note in notes} - {key} <= {"dbStorage_writeCacheMaxSizeMb"}  # JUNIT's own


def test_what_is_raised_is_what_this_bookie_needs() -> None:
    """These two ended the start."""
    configuration = configure({"skipListSizeLimit": "4194304", "dbStorage_writeCacheMaxSizeMb": "4"})
    assert configuration.service.store.cache_half_bytes == 2 * configuration.service.connection.frame_bytes_max
    assert configuration.notes == (
        "skipListSizeLimit=4194304: this bookie takes 10506240 to 1125899906842624, and uses 10506240",
        "dbStorage_writeCacheMaxSizeMb=4: this bookie takes 21 to 1073741824, and uses 21",
    )


@pytest.mark.parametrize(
    ("given", "used", "notes"), [(1, 65536, 1), (25_000, 65536, 1), (65536, 65536, 0), (99_999, 99_999, 0)]
)
def test_logs_are_not_synced_more_often_than_is_of_use(given: int, used: int, notes: int) -> None:
    """With 1 a flush synced every byte and did not end, nor did a stop."""
    configuration = configure({"flushEntrylogBytes": str(given)})
    assert configuration.service.store.append.sync_bytes == used
    assert configuration.notes == (f"flushEntrylogBytes={given}: a log is synced after at least 65536 bytes",) * notes


@pytest.mark.parametrize("key", CORNERS)
def test_bookie_with_the_last_corner_value_of_a_key_keeps_entries(tmp_path: Path, key: str) -> None:
    """The bookie must work with the value, not only start."""
    folder = tmp_path / "both"
    (folder / "current").mkdir(parents=True)
    storage = "Db" if key.startswith("dbStorage") else "Sorted"
    places = {"journalDirectories": str(folder), "ledgerDirectories": str(folder)}
    chosen = {**JUNIT, **places, "ledgerStorageClass": f"{storage}LedgerStorage", key: CORNERS[key][-1]}
    with Serving(configure(chosen).service) as serving, serving.connect() as peer:
        peer.add(7, 0, [b"entry"] * 20)
        assert peer.read(7, 19).body == stored(7, 19, b"entry")


@pytest.mark.cluster
@pytest.mark.parametrize(
    "text",
    [BK_SERVER + BK_SERVER_SHOWN, PULSAR, STANDALONE],
    ids=["bk_server.conf", "bookkeeper.conf", "standalone.conf"],
)
def test_published_file_starts_a_bookie(tmp_path: Path, uri: str, text: str) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri)
    path = tmp_path / "bk_server.conf"
    # Each case says where it is; the rest is the file's.
    place = {
        **bookie.settings,
        "allowLoopback": "true",
        "listeningInterface": "lo",
        "autoRecoveryDaemonEnabled": "false",
    }
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in place]
    path.write_text("\n".join(kept + [f"{key}={value}" for key, value in place.items()]))
    with bookie.running(path) as process, bookie.connect() as peer:
        peer.add(7, 0, [b"entry"])
        assert peer.read(7, 0).body == stored(7, 0, b"entry")
        process.signal(signal.SIGTERM)
        assert process.wait(STOP_S)
        assert process.exit_code == 0


@pytest.mark.cluster
def test_configuration_of_apaches_tests_starts_a_bookie_with_one_directory(tmp_path: Path, uri: str) -> None:
    folder = str(tmp_path / "bookie" / "both")
    bookie = BookieChild(
        tmp_path / "bookie",
        uri.replace("zk://", "zk+null://"),
        **JUNIT,
        journalDirectories=folder,
        ledgerDirectories=folder,
        indexDirectories=folder,
        skipListSizeLimit="4194304",
    )
    with bookie.running(), bookie.connect() as peer:
        peer.add(7, 0, [b"entry"])
        assert peer.read(7, 0).body == stored(7, 0, b"entry")
    log = (tmp_path / "bookie" / "bookie.log").read_text()
    for key in ("skipListSizeLimit=4194304", "dbStorage_writeCacheMaxSizeMb=4"):
        assert log.count(f"{key}: this bookie takes") == 1
