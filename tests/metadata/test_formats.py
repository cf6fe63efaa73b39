"""Bytes of the metadata nodes: Apache's forms are read and written; garbage is one named error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ConfigurationError, MetadataFormat
from bkspark.metadata import cookies, dataformats_pb2, encoding, layout, paths, racks, registration
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.wire.digest import DigestType
from bookie_service.replication.repair import swapped
from tests.generated_modules import check_generated

OPEN = LedgerMetadata(
    3, 2, 2, (Fragment(0, ("b:1", "b:2", "b:3")), Fragment(7, ("b:1", "b:4", "b:3"))), password=b"\x00secret\xff"
)
VARIANTS = [
    OPEN,
    OPEN.in_recovery(),
    OPEN.closed(12, 3456),
    replace(OPEN, digest=DigestType.MAC, custom_metadata={"application": b"pulsar", "bytes": bytes(range(256))}),
    replace(OPEN, ctime=1_700_000_000_000, ctoken=(1 << 62) + 5),
    replace(OPEN, password=None, digest=DigestType.CRC32),
]


@pytest.mark.parametrize("metadata", VARIANTS)
@pytest.mark.parametrize("version", [2, 3])
def test_metadata_is_read_as_written(metadata, version):
    metadata = replace(metadata, format_version=version)
    expected = replace(metadata, ctoken=0) if version == 2 else metadata
    assert encoding.decode(encoding.encode(metadata), 5) == expected


def test_version_3_begins_with_apaches_header():
    header = bytes.fromhex("426f6f6b69654d65746164617461466f726d617456657273696f6e09330a")
    assert encoding.encode(OPEN).startswith(header)


@pytest.mark.parametrize(
    ("tail", "state", "last_entry"),
    [("", "OPEN", -1), ("\n99\tCLOSED", "CLOSED", 99), ("\n-102\tCLOSED", "IN_RECOVERY", -1)],
)
def test_version_1_text_is_read_and_written_back(tail, state, last_entry):
    text = f"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\tb:1\tb:2\tb:3\n50\tb:1\tb:4\tb:3{tail}"
    metadata = encoding.decode(text.encode(), 5)
    assert (metadata.state.name, metadata.last_entry) == (state, last_entry)
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 2, 2)
    assert metadata.fragments[1] == Fragment(50, ("b:1", "b:4", "b:3"))
    assert encoding.encode(metadata).rstrip(b"\n") == text.encode()


def test_version_1_text_of_an_open_ledger_ends_with_its_line():
    """Apache's peers end each fragment's line, and not the one that closes the ledger."""
    version_1 = replace(OPEN, format_version=1, password=None, digest=DigestType.CRC32, custom_metadata={})
    assert encoding.encode(version_1).endswith(b"\n7\tb:1\tb:4\tb:3\n")
    assert encoding.encode(version_1.closed(12, 3456)).endswith(b"\n7\tb:1\tb:4\tb:3\n12\tCLOSED")
    for other in (replace(version_1, ack_quorum=1), replace(version_1, custom_metadata={"k": b"v"})):
        with pytest.raises(MetadataFormat, match="format 1 holds no ack quorum and no custom metadata"):
            encoding.encode(other)


def test_length_of_the_message_is_a_varint_and_is_exact():
    """A byte more may be the beginning of what a damaged disk left."""
    sizes = set()
    for characters in range(1, 80):
        metadata = replace(OPEN, custom_metadata={"n" * characters: b"v"})
        data = encoding.encode(metadata)
        sizes.add(len(data.partition(b"\n")[2]))
        assert encoding.decode(data, 5) == metadata
        with pytest.raises(MetadataFormat, match="bytes follow"):
            encoding.decode(data + b"\0", 5)
    assert {1 + 127, 2 + 128} <= sizes, "both sides of the first number that takes two bytes"


def test_equal_metadata_have_equal_bytes():
    one = replace(OPEN, custom_metadata={"a": b"1", "b": b"2"})
    assert encoding.encode(one) == encoding.encode(replace(OPEN, custom_metadata={"b": b"2", "a": b"1"}))


def test_truncated_and_random_metadata_is_one_named_error():
    generator = np.random.default_rng(3)
    data = encoding.encode(OPEN.closed(12, 3456))
    cuts = [data[:length] for length in range(len(data))]
    noise = [generator.bytes(int(generator.integers(0, 200))) for _ in range(500)]
    headed = [b"BookieMetadataFormatVersion\t%d\n" % (n % 5) + bytes for n, bytes in enumerate(noise)]
    for damaged in cuts + noise + headed:
        with pytest.raises(MetadataFormat):
            encoding.decode(damaged, 5)


def test_every_bit_flip_of_metadata_is_a_value_or_the_named_error():
    data = encoding.encode(OPEN)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            encoding.decode(bytes(flipped), 5)
        except MetadataFormat:
            continue


def _stored(fragments: int = 1, members: int = 3, quorum: int = 2, **changes: int) -> bytes:
    """Return metadata as any peer may store them, without our checks."""
    message = dataformats_pb2.LedgerMetadataFormat(
        quorumSize=quorum, ensembleSize=members, ackQuorumSize=quorum, length=0, state=1, lastEntryId=-1
    )
    for number in range(fragments):
        message.segment.add(firstEntryId=number, ensembleMember=[f"bookie-{slot}:1" for slot in range(members)])
    for name, value in changes.items():
        setattr(message, name, value)
    body = message.SerializeToString()
    return b"BookieMetadataFormatVersion\t3\n" + encoding.varint(len(body)) + body


CLOSED = {"state": 3}


def test_what_an_early_client_left_out_has_apaches_meaning():
    """Without an ack quorum all of the write quorum acknowledge, and a digest counts only beside a password. A closed
    ledger without a last entry is empty."""
    early = dataformats_pb2.LedgerMetadataFormat.FromString(_stored().partition(b"\n")[2][1:])
    early.ClearField("ackQuorumSize")
    early.ClearField("lastEntryId")
    early.digestType, early.state = DigestType.MAC.value, 3
    body = early.SerializeToString()
    metadata = encoding.decode(b"BookieMetadataFormatVersion\t3\n" + encoding.varint(len(body)) + body, 5)
    assert (metadata.write_quorum, metadata.ack_quorum, metadata.digest) == (2, 2, DigestType.CRC32)
    assert (metadata.is_closed, metadata.last_entry) == (True, -1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_stored(members=20_000), "an ensemble of 20000 bookies is above the limit of 1000"),
        (_stored(members=1001), "an ensemble of 1001 bookies is above the limit of 1000"),
        (_stored().replace(b"bookie-2:1", b"bookie-0:1"), "the fragment from entry 0 names a bookie twice"),
        (_stored(**CLOSED, lastEntryId=-2), "last entry -2"),
        (_stored(**CLOSED, lastEntryId=-(2**63)), "last entry -9223372036854775808"),
        (_stored(**CLOSED, lastEntryId=2**63 - 1), "last entry 9223372036854775807"),
        (_stored(**CLOSED, length=-5), "length of -5 bytes"),
        (
            b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\tb:1\n%d\tb:1" % (2**64),
            "last fragment, at 18446744073709551616",
        ),
        (b"BookieMetadataFormatVersion\t1\n1\n1\n%d\n0\tb:1\n5\tCLOSED" % (2**64), "length of 18446744073709551616"),
        (b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\tb:1\n%d\tCLOSED" % (2**64), "last entry 18446744073709551616"),
    ],
)
def test_metadata_out_of_bounds_is_refused_by_ledger_and_reason(data, why):
    """20,000 members blocked the event loop, and a ledger could be closed at entry -2^63."""
    with pytest.raises(MetadataFormat, match=f"ledger 5 cannot be read: .*{why}"):
        encoding.decode(data, 5)


@pytest.mark.parametrize(
    "data",
    [
        _stored(members=1000),
        _stored(fragments=1000),
        _stored(**CLOSED, lastEntryId=2**63 - 2, length=2**63 - 1),
        _stored(**CLOSED, lastEntryId=-1, length=0),
    ],
    ids=["members", "fragments", "last entry", "empty"],
)
def test_metadata_at_their_bounds_are_read(data):
    metadata = encoding.decode(data, 5)
    assert encoding.decode(encoding.encode(metadata), 5) == metadata


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/00/0000/L0000"),
        (12345, "/00/0001/L2345"),
        (2147483646, "/21/4748/L3646"),
        (2147483647, "/000/0000/0021/4748/L3647"),
        (4294967296, "/000/0000/0042/9496/L7296"),
    ],
)
def test_ledger_paths_match_vectors(ledger_id, path):
    assert paths.ledger_path(ledger_id, LedgerManager.HIERARCHICAL) == path
    assert paths.parse_ledger_path(path[1:]) == ledger_id


def test_ids_of_the_old_scheme_have_ten_digits_and_no_more():
    """docs/protocol.md §4.4: a cluster of the old hierarchical manager has no long ids."""
    old = LedgerManager.LEGACY_HIERARCHICAL
    for ledger_id, path in ((2147483647, "/21/4748/L3647"), (10**10 - 1, "/99/9999/L9999")):
        assert paths.ledger_path(ledger_id, old) == path
        assert paths.parse_ledger_path(path[1:]) == ledger_id
    for ledger_id in (10**10, 2**63 - 1):
        with pytest.raises(ValueError, match=r"does not fit the .* scheme of ten digits"):
            paths.ledger_path(ledger_id, old)


def test_other_path_vectors():
    assert paths.underreplication_path(4294967301) == "0000/0001/0000/0005/urL4294967301"
    assert paths.underreplication_path(70000) == "0000/0000/0001/1170/urL0000070000"
    assert paths.ledger_path(12345, LedgerManager.FLAT) == "/L0000012345"
    for name in ("LAYOUT", "available", "cookies", "idgen/ID-0000000001", "00/0001", "00/0001/X2345"):
        assert paths.parse_ledger_path(name) is None


def test_layout_names_the_manager():
    for manager in LedgerManager:
        assert layout.decode(layout.encode(manager)) is manager
    assert layout.decode(b"1\nhierarchical:1") is LedgerManager.HIERARCHICAL
    for damaged in (b"", b"2\nx:1", b"3\nflat:1", b"\xff"):
        with pytest.raises(MetadataFormat):
            layout.decode(damaged)


def test_cookie_of_apaches_example_is_read_and_written():
    text = (
        '5\nbookieHost: "10.0.0.1:3181"\njournalDir: "/data/j"\nledgerDirs: "2\\t/data/l1\\t/data/l2"\n'
        'instanceId: "5f0e"\n'
    )
    cookie = cookies.decode(text.encode(), "VERSION")
    assert cookie == Cookie("10.0.0.1:3181", ("/data/j",), ("/data/l1", "/data/l2"), "5f0e")
    assert cookies.encode(cookie) == text.encode()
    assert cookies.decode(b"3\nh:1\n/j\n1\t/l\n", "VERSION") == Cookie("h:1", ("/j",), ("/l",))
    moved = replace(cookie, ledger_directories=("/data/l1",))
    assert cookie.differences(moved) != []
    assert cookie.differences(replace(cookie, index_directories=("/data/i",))) == [
        "index directories /data/i instead of /data/l1,/data/l2"
    ]
    assert cookie.differences(replace(cookie, index_directories=cookie.ledger_directories)) == []
    for damaged in (b"", b"6\n", b"5\nbookieHost: 1", b'5\nbookieHost: "h"\n', b"\xff\xff"):
        with pytest.raises(MetadataFormat):
            cookies.decode(damaged, "VERSION")


def test_registration_with_a_property_that_is_not_text_is_refused():
    """protobuf hands over bytes for what is not UTF-8; `BookieAddress` promises text."""
    whole = registration.encode(BookieAddress("10.0.0.1", 3181, {"rack": "/r1"}))
    for text in (b"rack", b"/r1"):
        with pytest.raises(MetadataFormat, match="registration of bookie b-1 cannot be read"):
            registration.decode(whole.replace(text, b"\xff" + text[1:]), "b-1")


def test_error_about_damaged_text_does_not_quote_the_password():
    text = b'BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 2\npassword: "hunter2'
    with pytest.raises(MetadataFormat, match="line 3 of the text has an error") as caught:
        encoding.decode(text, 5)
    assert "hunter2" not in str(caught.value)


def test_clients_connect_to_the_endpoint_of_their_protocol_wherever_it_is():
    message = dataformats_pb2.BookieServiceInfoFormat()
    message.endpoints.add(id="httpserver", host="10.0.0.2", port=8080, protocol="http")
    message.endpoints.add(id="bookie", host="10.0.0.1", port=3181, protocol="bookie-rpc")
    found = registration.decode(message.SerializeToString(), "b-1")
    assert (found.host, found.port, found.http) == ("10.0.0.1", 3181, ("10.0.0.2", 8080))


def test_registration_is_elsewhere_if_host_or_port_differ_or_it_cannot_be_read():
    here = BookieAddress("10.0.0.1", 3181, {"k": "v"})
    assert not registration.is_elsewhere(registration.encode(replace(here, properties={})), "b-1", here)
    for data in (registration.encode(replace(here, port=1)), registration.encode(replace(here, host="h")), b"\xff"):
        assert registration.is_elsewhere(data, "b-1", here)


def test_registration_is_read_as_written_and_empty_means_the_id():
    address = BookieAddress("10.0.0.1", 3181, {"k": "v"})
    assert registration.decode(registration.encode(address), "b") == address
    assert registration.decode(b"", "10.0.0.1:3181") == BookieAddress("10.0.0.1", 3181)
    for damaged, bookie_id in ((b"", "no-address"), (b"\x0a", "h:1"), (b"\xff" * 9, "h:1")):
        with pytest.raises(MetadataFormat):
            registration.decode(damaged, bookie_id)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "zk:/", "http://h/l", "zk+x://h/l", "zk:///l", "zk://h", "zk://h/", "zk://h:0/l", "zk://h:x/l"),
        *(
            "zk://[::1/l",
            "zk://[:]:1/l",
            "zk://h:\u0661/l",
            "zk://h h:1/l",
            "zk://a..b/l",
            "zk://h:1,.b:2/l",
            f"zk://{'x' * 64}/l",
            "zk://h\ud800/l",
            "zk://h/a/../b",
            "zk://h/./a",
            "zk://h/a//b",
        ),
    ],
)
def test_bad_uri_is_one_error_that_shows_it(uri):
    with pytest.raises(ConfigurationError):
        MetadataUri.parse(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "zk://user:hunter2@h:2181/l",
        "zk://hunter2@h/l",
        "zk://user:hunt/er2@h:2181/l",
        "zk://h1:2181;user:hunter2@h2:2181/l",
        "http://user:hunter2@h/l",
        "zk://user:hunter2@h",
    ],
)
def test_password_in_a_uri_is_refused_and_not_shown(uri):
    with pytest.raises(ConfigurationError, match=r"://\*\*\*@h") as caught:
        MetadataUri.parse(uri)
    assert "hunt" not in str(caught.value)
    assert "er2" not in str(caught.value)
    assert MetadataUri.parse("zk://h:2181/a@b").root == "/a@b"


def test_uri_names_hosts_root_and_manager():
    uri = MetadataUri.parse("zk+hierarchical://h1:2181;h2;[::1]:99/a/ledgers")
    assert uri.hosts == (("h1", 2181), ("h2", 2181), ("::1", 99))
    assert (uri.root, uri.manager) == ("/a/ledgers", LedgerManager.HIERARCHICAL)
    assert uri.connect_string == "h1:2181,h2:2181,[::1]:99"
    assert MetadataUri.parse(str(uri)) == uri
    assert MetadataUri.parse("zk+null://h/l").manager is None


@pytest.mark.parametrize("text", ["ZK+Hierarchical://h1:2181;h2/Ledgers", "Zk+HIERARCHICAL://h1:2181,h2:2181/Ledgers"])
def test_case_of_a_scheme_does_not_matter_as_in_apaches_programs(text: str) -> None:
    assert MetadataUri.parse(text) == MetadataUri.parse("zk+hierarchical://h1:2181;h2:2181/Ledgers")


def test_generated_module_is_what_its_proto_file_says(tmp_path):
    check_generated(dataformats_pb2.DESCRIPTOR, "bkspark/metadata/dataformats.proto", tmp_path)


COOKIE = Cookie("h:1", ("/j",), ("/l1", "/l2"), "5f0e")
DECODERS = {
    "ledger, version 1": (
        encoding.encode(replace(OPEN, format_version=1)),
        lambda data: encoding.decode(data, 5),
    ),
    "ledger, version 2": (
        encoding.encode(replace(VARIANTS[3], format_version=2)),
        lambda data: encoding.decode(data, 5),
    ),
    "ledger, version 3": (encoding.encode(VARIANTS[3]), lambda data: encoding.decode(data, 5)),
    "cookie": (cookies.encode(COOKIE), lambda data: cookies.decode(data, "VERSION")),
    "registration": (
        registration.encode(BookieAddress("10.0.0.1", 3181, {"k": "v"})),
        lambda data: registration.decode(data, "b"),
    ),
    "layout": (layout.encode(LedgerManager.FLAT), layout.decode),
    "racks": (b'{"g": {"b:1": {"rack": "/r1", "hostname": "h"}}}', lambda data: racks.decode(data, "/bookies")),
}


@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")
@pytest.mark.parametrize("form", DECODERS)
def test_damaged_bytes_are_a_value_or_the_named_error(form):
    data, decode = DECODERS[form]
    generator = np.random.default_rng(7)
    for _ in range(2000):
        damaged = bytearray(data)
        for at in generator.integers(0, len(data), int(generator.integers(1, 4))).tolist():
            replacement = generator.bytes(int(generator.integers(0, 4)))
            damaged[at : at + int(generator.integers(0, 3))] = replacement
        try:
            decode(bytes(damaged))
        except MetadataFormat:
            continue


@pytest.mark.parametrize("form", ["ledger, version 2", "cookie"])
def test_deeply_nested_text_is_the_named_error(form):
    data, decode = DECODERS[form]
    first_line = data.partition(b"\n")[0]
    with pytest.raises(MetadataFormat):
        decode(first_line + b"\n" + b"a{" * 10_000)


def with_appended_field(metadata, field):
    """The version 3 bytes of metadata whose message ends with one more encoded field."""
    header, _, body = encoding.encode(metadata).partition(b"\n")
    message = body[1:] + field
    assert len(message) < 128
    return header + b"\n" + bytes([len(message)]) + message


def test_fields_of_a_later_peer_survive_a_rewrite():
    data = with_appended_field(LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),)), b"\xa2\x06\x03abc")
    metadata = encoding.decode(data, 5)
    assert encoding.encode(metadata) == data
    assert encoding.encode(metadata.closed(3, 30)).endswith(b"\xa2\x06\x03abc")


def test_fields_of_a_later_peer_in_a_fragment_survive_a_rewrite():
    message = dataformats_pb2.LedgerMetadataFormat(
        ensembleSize=1, quorumSize=1, ackQuorumSize=1, length=0, lastEntryId=-1, state=1
    )
    for first_entry, field in ((0, b"\xa2\x06\x03abc"), (10, b"")):
        message.segment.add(firstEntryId=first_entry, ensembleMember=["b:1"]).MergeFromString(field)
    body = message.SerializeToString()
    metadata = encoding.decode(b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)]) + body, 5)
    for changed in (
        metadata,
        metadata.with_ensemble(20, ["b:2"]),
        metadata.closed(3, 30),
        swapped(metadata, 0, {0: "c"}),
    ):
        written = encoding.decode(encoding.encode(changed), 5)
        assert written == changed
        assert [it.unknown_fields for it in written.fragments[:2]] == [b"\xa2\x06\x03abc", b""]


def test_unknown_digest_of_a_later_peer_is_not_mistaken_for_another():
    data = with_appended_field(LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),)), b"\x38\x09")
    with pytest.raises(MetadataFormat, match="digest"):
        encoding.decode(data, 5)


@pytest.mark.parametrize("state", [b"", b"\x28\x04", b"\x28\x00"], ids=["none", "a later peer's", "zero"])
def test_ledger_without_a_known_state_is_not_taken_for_an_open_one(state):
    message = dataformats_pb2.LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=0)
    message.segment.add(firstEntryId=0, ensembleMember=["b:1"])
    body = message.SerializePartialToString() + state
    with pytest.raises(MetadataFormat, match="ledger 5 cannot be read: it lacks state"):
        encoding.decode(b"BookieMetadataFormatVersion\t3\n" + bytes([len(body)]) + body, 5)


def test_fragment_without_its_first_entry_is_refused():
    text = b'quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN segment { ensembleMember: "b:1" }'
    with pytest.raises(MetadataFormat, match="firstEntryId"):
        encoding.decode(b"BookieMetadataFormatVersion\t2\n" + text, 5)


def test_custom_metadata_key_that_is_not_text_is_refused_rather_than_renamed():
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),), custom_metadata={"keys": b"v"})
    with pytest.raises(MetadataFormat, match="key"):
        encoding.decode(encoding.encode(metadata).replace(b"keys", b"\xff\xff\xff\xff"), 5)


def test_rack_map_of_apaches_brokers_is_read():
    data = b"""{"group1": {"b:1": {"rack": "/rack0", "hostname": "b1.example.com"}, "b:2": {"rack": "rack1"}},
                "group2": {"b:3": {"rack": "/east/rack1/"}, "b:4": {"hostname": "h"}, "b:5": {"rack": "", "x": 1}}}"""
    assert racks.decode(data, "/bookies").racks == {"b:1": "/rack0", "b:2": "/rack1", "b:3": "/east/rack1"}
    assert racks.decode(b"", "/bookies") == racks.decode(b"{}", "/bookies") == racks.RackMap()


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"g": 1}', b'{"g": {"b:1": "/r"}}', b'{"g": {"b:1": {"rack": 7}}}', b"\xff", b"[" * 100_000]
)
def test_invalid_rack_map_is_an_error_that_shows_its_path(data):
    with pytest.raises(MetadataFormat, match="/ledgers/bookies"):
        racks.decode(data, "/ledgers/bookies")


def test_rack_map_names_hosts_with_or_without_a_port():
    data = b'{"g": {"one": {"rack": "/r", "hostname": "h1:3181"}, "two": {"hostname": "h2"}, "b:1": {"hostname": 0}}}'
    assert racks.decode(data, "/bookies").hosts == {"one": "h1", "two": "h2"}
