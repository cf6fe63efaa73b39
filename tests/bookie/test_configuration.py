"""Configuration: Apache's syntax and keys, and one line for every mistake."""

from __future__ import annotations

import doctest
import os
import socket
from pathlib import Path

import pytest

from bkspark import properties
from bkspark.errors import ConfigurationError
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.settings import address
from bookie_service.settings.configuration import Configuration, configure, is_secret, load, served_settings
from bookie_service.settings.keys import APACHE_KEYS
from bookie_service.settings.service_options import AddressOptions
from bookie_service.storage.journal.flush_policy import FlushLimits


def test_examples_in_the_syntax_module_hold() -> None:
    assert doctest.testmod(properties).failed == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb : 2\nc 3\nd\n", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "")]),
        ("  a  =  x y  \n", [("a", "x y")]),
        ("# a=1\n! b=2\n\n", []),
        ("a=1\na=2\n", [("a", "1"), ("a", "2")]),
        ("a=x,\\\n   y\\\n  ,z\nb=1", [("a", "x,y,z"), ("b", "1")]),
        ("a=c:\\\\dir\\\\", [("a", "c:\\dir\\")]),
        ("a\\=b=\\u0041\\t|", [("a=b", "A\t|")]),
        ("a=x\\,y\\=z\\:\\#", [("a", "x,y=z:#")]),
        ("a=x\\qy\\$z\\ w", [("a", "x\\qy\\$z\\ w")]),
        ("uri=zk+hierarchical://h:2181;i:2181/ledgers", [("uri", "zk+hierarchical://h:2181;i:2181/ledgers")]),
    ],
)
def test_properties_syntax(text: str, expected: list[tuple[str, str]]) -> None:
    """As Apache's ServerConfiguration 4.18.0 reads it."""
    assert properties.pairs(text) == expected


def test_line_without_a_key_is_named() -> None:
    with pytest.raises(ValueError, match="line 2 has no key"):
        properties.pairs("a=1\n=2\n")


def test_defaults_are_apaches() -> None:
    configuration = configure({})
    assert configuration.address == AddressOptions(port=3181)
    assert str(configuration.metadata_uri) == "zk+hierarchical://localhost:2181/ledgers"
    service = configuration.service
    assert service.journal_directories == ("/tmp/bk-txn",)
    assert service.ledger_directories == ("/tmp/bk-data",)
    assert service.store.cache_half_bytes == 64 * 1024 * 1024
    assert service.store.append.log_bytes_max == 1024 * 1024 * 1024
    assert service.journal.file_bytes_max == 2048 * 1024 * 1024
    assert service.checkpoint_interval_s == 10
    assert service.flush == FlushLimits()
    assert service.journal.sync_groups
    assert service.bookie.journals_entries
    assert not configuration.unused_keys
    assert not configuration.dangers


def test_values_reach_their_parts() -> None:
    configuration = configure(
        {
            "journalDirectories": " /a , /b ",
            "ledgerDirectories": "/c",
            "flushInterval": "500",
            "journalMaxGroupWaitMSec": "7",
            "journalFlushWhenQueueEmpty": "False",
            "journalBufferedWritesThreshold": "1000",
            "journalBufferedEntriesThreshold": "3",
            "journalAlignmentSize": "4096",
            "journalSyncData": "false",
            "journalWriteData": "false",
            "journalPageCacheFlushIntervalMSec": "50",
            "maxAddsInProgressLimit": "9",
            "forceReadOnlyBookie": "true",
            "zkTimeout": "2500",
            "bookieId": "bookie-1",
        }
    )
    service = configuration.service
    assert service.journal_directories == ("/a", "/b")
    assert service.checkpoint_interval_s == 0.5
    assert service.flush == FlushLimits(1000, 3, 7_000_000, flush_when_idle=False, marker_delay_ns=50_000_000)
    assert (service.journal.alignment_bytes, service.journal.sync_groups) == (4096, False)
    assert not service.bookie.journals_entries
    assert [danger.partition(" is ")[0] for danger in configuration.dangers] == [
        "journalSyncData=false",
        "journalWriteData=false",
    ]
    assert (service.bookie.adds_in_flight_max, service.disks.is_forced_read_only) == (9, True)
    # Autorecovery and the HTTP server, whose sessions are others, waited ten seconds whatever was set.
    assert configuration.zookeeper.timeout_s == configuration.auto_recovery.zookeeper.timeout_s == 2.5
    assert configuration.address.bookie_id == "bookie-1"


def test_older_keys_replace_missing_newer_ones() -> None:
    values = {"zkServers": "h:1,i:2", "zkLedgersRootPath": "/root/ledgers", "journalDirectory": "/j"}
    configuration = configure(values)
    assert str(configuration.metadata_uri) == "zk://h:1;i:2/root/ledgers"
    assert configuration.service.journal_directories == ("/j",)
    assert str(configure({**values, "metadataServiceUri": "zk://k:3/l"}).metadata_uri) == "zk://k:3/l"


def test_ledgers_root_counts_without_servers_too() -> None:
    """A bookie that took the default root in its place would join another cluster."""
    uri = configure({"zkLedgersRootPath": "/other/ledgers"}).metadata_uri
    assert str(uri) == "zk+hierarchical://localhost:2181/other/ledgers"


TLS = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory"}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"bookieport": "1"}, "configuration key 'bookieport' does not exist; did you mean bookiePort?"),
        ({"journalMaxSizeMb": "1"}, "did you mean journalMaxSizeMB?"),
        ({"journalAlignmentSize": "1000"}, "journalAlignmentSize=1000: it must be a multiple of 512"),
        ({"": "1"}, "configuration key '' does not exist"),
        ({"tlsWanted": "true"}, "'tlsWanted' does not exist, and by its name it may protect something: remove it"),
        ({"tlsRequired": "true"}, "tlsRequired=true: there is no TLS without tlsProviderFactoryClass=org.apache."),
        ({"my.ssl.keystore": "x"}, "'my.ssl.keystore' does not exist, and by its name it may protect something"),
        ({"bookiePort": "0"}, "bookiePort=0: a port that changes at every start needs allowEphemeralPorts=true"),
        ({"journalPreAllocSizeMB": "-1"}, "journalPreAllocSizeMB=-1: it must be a whole number from 0 to 2048"),
        ({"bookiePort": "3_181"}, "bookiePort=3_181: it must be a whole number"),
        ({"bookiePort": "\u0663181"}, "it must be a whole number"),
        ({"flushInterval": "9" * 5000}, "it must be a whole number from -1 to 316224000000"),
        ({"bookiePort": "70000"}, "bookiePort=70000: it must be a whole number from 0 to 65535"),
        ({"gcWaitTime": "0"}, "gcWaitTime=0: it must be a whole number from 1"),
        ({"flushInterval": "soon"}, "flushInterval=soon: it must be a whole number"),
        ({"allowLoopback": "maybe"}, "allowLoopback=maybe: it must be true or false"),
        ({"ledgerDirectories": "/a,/a"}, "must name different directories"),
        ({"bookieId": "a b"}, "bookie id 'a b' is not usable"),
        ({"bookieId": ".."}, "bookie id '..' is not usable"),
        (
            {"logSizeLimit": str(1 << 40)},
            "logSizeLimit=1099511627776: it must be a whole number from 1048576 to 2147483648",
        ),
        ({"ledgerDirectories": "/a/${nothing}"}, "it names a key or a variable that is not set"),
        (
            {"ledgerDirectories": "${sys:user.home}/a"},
            "only Java can replace ${sys:user.home}: write what it stands for",
        ),
        ({"bookieId": "${bookieId}"}, "bookieId=${bookieId}: what it refers to refers to itself"),
        ({"metadataServiceUri": "zk://h"}, "names no root path"),
        ({"metadataServiceUri": "zk://u:hunter2@h/l"}, "metadataServiceUri=zk://***@h/l: metadata URI 'zk://***@h/l'"),
        ({"zkServers": "h:2181,u:hunter2@i:2181"}, "zkServers=***@i:2181: it must name hosts alone"),
        ({"majorCompactionThreshold": "half"}, "majorCompactionThreshold=half: it must be a number from "),
        ({"gcDeletedShareMax": "nan"}, "gcDeletedShareMax=nan: it must be a number from "),
        ({"majorCompactionThreshold": "1.1"}, "majorCompactionThreshold=1.1: it must be a number from "),
        ({"minorCompactionThreshold": "0.9"}, "minorCompactionThreshold 0.9 must be below majorCompactionThreshold"),
        ({"minorCompactionInterval": "90000"}, "minorCompactionInterval 90000 must be below majorCompactionInterval"),
        ({"gcWaitTime": "7200000"}, "minorCompactionInterval 3600 s is shorter than gcWaitTime 7200000 ms"),
        ({"tlsProviderFactoryClass": "org.x"}, "tlsProviderFactoryClass=org.x: it must be org.apache.bookkeeper.tls."),
        ({**TLS, "tlsKeyStore": "/k", "tlsEnabledProtocols": "TLSv1"}, "tlsEnabledProtocols=TLSv1: TLSv1 is not safe"),
        (
            {**TLS, "tlsKeyStore": "/k", "tlsEnabledCipherSuites": "RC4"},
            "tlsEnabledCipherSuites=RC4: 'RC4' is not a cipher suite that is served",
        ),
        ({"tlsKeyStoreType": "BKS"}, "tlsKeyStoreType=BKS: it must be one of PEM, PKCS12, JKS"),
        ({"httpServerEnabled": "true", "httpServerHost": "0.0.0.0"}, "httpServerHost=0.0.0.0: other hosts would reach"),
        ({"zkEnableSecurity": "true"}, "zkEnableSecurity=true needs an identity"),
        ({"disableServerSocketBind": "true"}, "this bookie has no listener other than its port"),
        ({"passwd": "s3cret\0"}, "passwd=***: it must not hold a zero character"),
        # Python gives such halves of surrogates for bytes of arguments and variables that are not UTF-8.
        ({"ledgerDirectories": "/a\udce9"}, "ledgerDirectories='/a\\udce9': it must be UTF-8"),
        ({"passwd": "s3cret\udce9"}, "passwd=***: it must be UTF-8"),
    ],
)
def test_mistakes_are_reported_in_one_line(values: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(values)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_directory_below_a_working_directory_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"\xe9")
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    with pytest.raises(ConfigurationError, match=r"ledgerDirectories=.*: its paths must be UTF-8"):
        configure({"ledgerDirectories": "ledgers"})


def test_every_key_of_apache_is_accepted_and_keys_without_effect_are_reported() -> None:
    configuration = configure({**dict.fromkeys(APACHE_KEYS, ""), "httpServerClass": "x", "dlog.bkcEnsembleSize": "3"})
    assert configuration.unused_keys == ("dlog.bkcEnsembleSize", "httpServerClass")
    assert configure({"journalQueueSizeLimit": "1"}).notes == (
        "configuration key 'journalQueueSizeLimit' is unknown, and without effect; did you mean journalQueueSize?",
    )
    # Another release's, a vendor's, a test's.
    assert configure({"qqqqqqqq": "1", "test.slowStorage.addDelay": "1"}).unused_keys == (
        "qqqqqqqq", "test.slowStorage.addDelay"
    )  # fmt: skip


def test_password_is_in_no_text_of_a_configuration() -> None:
    assert "s3cret" not in repr(configure({"passwd": "s3cret"}))


def test_first_value_of_a_key_counts_and_lists_are_joined(tmp_path: Path) -> None:
    """As Apache's bookies do."""
    path = tmp_path / "bk_server.conf"
    path.write_text("bookiePort=1\nbookiePort=2\nledgerDirectories=/a\nledgerDirectories=/b,/c\nbookiePort=3\n")
    configuration = load(path, [])
    assert configuration.address.port == 1
    assert configuration.service.ledger_directories == ("/a", "/b", "/c")
    assert configuration.notes == (f"bookiePort is set more than once in --config '{path}': its first value is used",)


def test_included_files_are_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.conf").write_text("bookiePort=7\nzkTimeout=5000\n")
    path = tmp_path / "bk_server.conf"
    path.write_text("include = more/a.conf\nbookiePort=8\nincludeoptional = none.conf\n")
    configuration = load(path, [])
    assert (configuration.address.port, configuration.zookeeper.timeout_s) == (7, 5)
    path.write_text("include = none.conf\n")
    with pytest.raises(ConfigurationError, match=r"none\.conf', which --config .* includes, cannot be read: No such"):
        load(path, [])
    path.write_text("include = bk_server.conf\n")
    with pytest.raises(ConfigurationError, match="files include themselves"):
        load(path, [])


def test_variables_are_replaced_as_apaches_bookies_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_DISK", "/disk1")
    configuration = configure(
        {
            "bookiePort": "${my.port}",
            "my.port": " 4181 ",
            "ledgerDirectories": "${env:BK_DISK}/a,${BK_NOT:-/disk2}/b",
            "journalDirectories": "${env:BK_NOT:-/disk3}/${bookiePort}",
            "passwd": "lit${eral",
        }
    )
    assert configuration.address.port == 4181
    assert configuration.service.ledger_directories == ("/disk1/a", "/disk2/b")
    assert configuration.service.journal_directories == ("/disk3/4181",)
    assert configuration.auto_recovery.repair.password == b"lit${eral"


@pytest.mark.parametrize("reference", ["${passwd}", "${env:BK_WORD}", "a${passwd}", "${BK_NOT:-b}/${env:BK_WORD}"])
@pytest.mark.parametrize("word", ["hunter2secret", "hunter2secret:notaport", "zk://hunter2secret", "99999999999999"])
def test_message_about_a_value_shows_what_it_names_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, reference: str, word: str
) -> None:
    """A key that is not secret may name one that is, by mistake (S13)."""
    monkeypatch.setenv("BK_WORD", word)
    refused = 0
    for key in served_settings():
        if is_secret(key):
            continue
        try:
            lines = list(configure({key: reference, "passwd": word}).notes)
        except ConfigurationError as error:
            refused += 1
            lines = [str(error)]
            assert reference in lines[0] or not lines[0].startswith(f"{key}=")
        for line in lines:
            assert not any(part in line for part in [*word.split(":")[-1:], word, "hunter2secret"]), line
    assert refused > 20


def test_host_that_others_would_reach_is_shown_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_WORD", "hunter2secret")
    for key, switches in (
        ("httpServerHost", {"httpServerEnabled": "true"}),
        ("prometheusStatsHttpAddress", {"statsProviderClass": "PrometheusMetricsProvider"}),
    ):
        with pytest.raises(ConfigurationError, match=rf"^{key}=\$\{{env:BK_WORD\}}: other hosts") as caught:
            configure({key: "${env:BK_WORD}", **switches})
        assert "hunter2" not in str(caught.value)


def test_message_without_the_value_still_says_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_WORD", "loud")
    with pytest.raises(ConfigurationError, match=r"^logLevel=\$\{env:BK_WORD\}: it must be one of debug, info,"):
        configure({"logLevel": "${env:BK_WORD}"})
    with pytest.raises(ConfigurationError, match=r"^bookiePort=\$\{env:BK_WORD\}: it must be a whole number from 0"):
        configure({"bookiePort": "${env:BK_WORD}"})


def test_storage_class_that_is_a_kind_of_one_is_that_one_with_a_line() -> None:
    def storage(**values: str) -> tuple[str, int]:
        configuration = configure(values)
        return configuration.service.store.storage_class.short_name, len(configuration.notes)

    slow = "org.apache.bookkeeper.bookie.SlowInterleavedLedgerStorage"
    assert storage(ledgerStorageClass=slow) == ("InterleavedLedgerStorage", 1)
    assert storage(ledgerStorageClass="org.example.Outer$MockedDbLedgerStorage") == ("DbLedgerStorage", 1)
    assert storage(ledgerStorageClass="org.apache.bookkeeper.bookie.SortedLedgerStorage") == ("SortedLedgerStorage", 0)
    assert storage(sortedLedgerStorageEnabled="false") == ("InterleavedLedgerStorage", 0)
    assert storage(sortedLedgerStorageEnabled="false", ledgerStorageClass="DbLedgerStorage") == ("DbLedgerStorage", 0)


def test_settings_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text("bookiePort=1\nzkEnableSecurity=false\nbookieAuthProviderFactoryClass=null\n")
    configuration: Configuration = load(path, [("bookiePort", "2"), ("bookiePort", "3")])
    assert configuration.address.port == 3


def test_file_that_is_not_text_is_an_error_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_bytes(b"bookiePort=1\n\xff")
    with pytest.raises(ConfigurationError, match=r"bk_server\.conf' is not UTF-8 text: see its byte 13$"):
        load(path, [])


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.conf' cannot be read: No such file"):
        load(tmp_path / "none.conf", [])
    (tmp_path / "bad.conf").write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"bad\.conf'"):
        load(tmp_path / "bad.conf", [])


# ---- addresses ----


def bound(**changes: object) -> address.BoundAddress:
    result = address.bind(AddressOptions(port=0, **changes))
    result.listener.close()
    return result


def test_loopback_is_refused_unless_allowed() -> None:
    with pytest.raises(ConfigurationError, match="allowLoopback=true"):
        bound(listening_interface="lo")
    chosen = bound(listening_interface="lo", allow_loopback=True)
    assert (chosen.host, chosen.bookie_id) == ("127.0.0.1", f"127.0.0.1:{chosen.port}")


def test_advertised_address_is_kept_and_makes_the_id() -> None:
    chosen = bound(advertised_address="bookie.example.org")
    assert (chosen.host, chosen.bookie_id) == ("bookie.example.org", f"bookie.example.org:{chosen.port}")
    assert bound(advertised_address="bookie.example.org", bookie_id="b-1").bookie_id == "b-1"


def test_invalid_bookie_id_is_reported_in_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"'no such host!:0' is not usable.*set bookieId"):
        bound(advertised_address="no such host!")


def test_advertised_loopback_is_listened_on_alone() -> None:
    chosen = address.bind(AddressOptions(port=0, advertised_address="127.0.0.1"))
    try:
        assert chosen.listener.getsockname()[0] == "127.0.0.1"
    finally:
        chosen.listener.close()


def test_unknown_interface_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"listeningInterface=nope0: .*there are .*lo"):
        bound(listening_interface="nope0")
    monkeypatch.setenv("BK_WORD", "hunter2secret")
    options = configure({"listeningInterface": "${env:BK_WORD}"}).address
    with pytest.raises(ConfigurationError, match=r"listeningInterface=\$\{env:BK_WORD\}: no such interface") as caught:
        address.bind(options)
    assert "hunter2" not in str(caught.value)


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"bookiePort={port} .*in use"):
            address.bind(AddressOptions(port=port, advertised_address="127.0.0.1"))


def test_compaction_is_off_with_a_threshold_or_an_interval_of_zero_or_less() -> None:
    off = {"minorCompactionThreshold": "0", "majorCompactionInterval": "-1"}
    collection = configure(off).service.collection
    assert not collection.minor.is_on
    assert not collection.major.is_on
    assert configure({}).service.collection == CollectionOptions()


def test_keys_of_garbage_collection_have_apaches_names_and_units() -> None:
    """Reference 6.9 and 8.5."""
    collection = configure(
        {
            "majorCompactionMaxTimeMillis": "1500",
            "gcMetadataOpRateLimit": "7",
            "compactionMaxOutstandingRequests": "9",
            "isForceGCAllowWhenNoSpace": "true",
            "forceAllowCompaction": "true",
            "compactionRate": "11",
        }
    ).service.collection
    assert (collection.minor.seconds_max, collection.major.seconds_max) == (0, 1.5)
    assert (collection.metadata_ops_per_s, collection.outstanding_max, collection.entries_per_s) == (7, 9, 11)
    assert (collection.compact_when_full, collection.force_without_interval) == (True, True)
    assert configure({"compactionRate": "1", "compactionRateByEntries": "2"}).service.collection.entries_per_s == 2
    assert configure({"verifyMetadataOnGC": "false", "gcEntryLogMetadataCacheEnabled": "true"}).unused_keys == ()
