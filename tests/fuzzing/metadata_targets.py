"""Targets for nodes in ZooKeeper: any client with write access can write these bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataFormat
from bkspark.log import delta, formats, routing
from bkspark.log.formats import LogHead, PageRef, SegmentFacts, SegmentOwner
from bkspark.log.positions import Position, parse_place
from bkspark.metadata import cookies, encoding, layout, paths, racks, registration, underreplication
from bkspark.metadata import election as auditor_election
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bkspark.wire.digest import DigestType
from tests.fuzzing.target import Draw, Target

TOKEN = "00000000000000aa"
_BOOKIES = ("10.0.0.1:3181", "10.0.0.2:3181", "b-3")
_METADATA = LedgerMetadata(
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(0, _BOOKIES), Fragment(10, (*_BOOKIES[:2], "b-4"))),
    password=b"secret",
    digest=DigestType.CRC32C,
    custom_metadata={"application": b"pulsar"},
    ctime=17,
    ctoken=5,
    format_version=3,
)


def _ledger_metadata(data: bytes) -> LedgerMetadata:
    return encoding.decode(data, 5)


def _encodes_again(metadata: LedgerMetadata) -> None:
    encoded = encoding.encode(metadata)
    again = encoding.decode(encoded, 5)
    assert again == _as_stored(metadata)
    assert encoding.encode(again) == encoded, "not canonical"


def _as_stored(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return what a node of the metadata's version keeps of it: version 2 has no creator's token."""
    return replace(metadata, ctoken=0) if metadata.format_version == 2 else metadata


def _metadata_seeds() -> Iterator[bytes]:
    for metadata in (_METADATA, _METADATA.in_recovery(), _METADATA.in_recovery().closed(20, 1000)):
        yield encoding.encode(metadata)
        yield encoding.encode(replace(metadata, format_version=2))
        plain = replace(metadata, ack_quorum=3, password=None, custom_metadata={}, digest=DigestType.CRC32)
        yield encoding.encode(replace(plain, format_version=1, ctime=None, ctoken=0))


def _metadata_built(data: bytes) -> None:
    """Whatever metadata can be made can be stored, and is read back as it was."""
    draw = Draw(data)
    size = 1 + draw.below(5)
    write_quorum = 1 + draw.below(size)
    bookies = [f"b-{number}" for number in range(10)]
    firsts = sorted({0, *(draw.below(256) for _ in range(draw.below(4)))})
    fragments = tuple(Fragment(first, tuple(bookies[turn : turn + size])) for turn, first in enumerate(firsts))
    metadata = LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=1 + draw.below(write_quorum),
        fragments=fragments,
        password=draw.blob(16),
        digest=draw.choice(tuple(DigestType)),
        custom_metadata={f"k{draw.text(8)}": draw.blob(16) for _ in range(draw.below(4))},
        ctime=draw.int64(),
        ctoken=draw.int64(),
        format_version=draw.choice((2, 3)),
    )
    state = draw.choice(tuple(LedgerState))
    if state is not LedgerState.OPEN:
        metadata = metadata.in_recovery()
    if state is LedgerState.CLOSED:
        metadata = metadata.closed(firsts[-1] + draw.below(256), draw.below(1 << 16))
    assert encoding.decode(encoding.encode(metadata), 5) == _as_stored(metadata)


def _cookie_encodes_again(cookie: Cookie) -> None:
    again = cookies.decode(cookies.encode(cookie), "here")
    assert again == cookie
    assert cookie.differences(again) == []


def _cookie_seeds() -> Iterator[bytes]:
    cookie = Cookie("10.0.0.1:3181", ("/j1", "/j2"), ("/l1",), "instance", ("/i",))
    yield cookies.encode(cookie)
    yield cookies.encode(replace(cookie, instance_id=None, index_directories=None)).replace(b"5\n", b"4\n")
    yield b"3\n10.0.0.1:3181\n/j1\n1\t/l1\n"


def _registration_encodes_again(address: BookieAddress) -> None:
    assert registration.decode(registration.encode(address), "b-1") == address


def _registration_seeds() -> Iterator[bytes]:
    yield registration.encode(BookieAddress("10.0.0.1", 3181, {"rack": "/r1"}))
    yield b""


def _underreplicated(data: bytes) -> underreplication.Underreplicated:
    return underreplication.decode(data, 5)


def _underreplicated_encodes_again(found: underreplication.Underreplicated) -> None:
    assert underreplication.decode(underreplication.encode(found.missing, found.ctime_ms), 5) == found


def _texts(data: bytes) -> None:
    """Formats of a few words: LAYOUT, the auditor's votes, names of nodes."""
    draw = Draw(data)
    kind, rest = draw.below(5), draw.rest()
    text = rest.decode("utf-8", "replace")
    if kind == 0:
        manager = layout.decode(rest)
        assert layout.decode(layout.encode(manager)) is manager
    elif kind == 1:
        auditor_election.decode_vote(rest)
    elif kind == 2:
        ledger_id = paths.parse_ledger_path(text)
        if ledger_id is not None and ledger_id < 1 << 63:
            managers = (LedgerManager.FLAT, LedgerManager.LONG_HIERARCHICAL)
            assert any(
                paths.parse_ledger_path(paths.ledger_path(ledger_id, manager)[1:]) == ledger_id for manager in managers
            )
    elif kind == 3:
        formats.parse_pending_name(text, "/bkspark/logs/clicks/pending")
    else:
        auditor_election.is_vote(text)


def _uri(data: bytes) -> MetadataUri:
    return MetadataUri.parse(data.decode("utf-8", "replace"))


def _uri_is_text_again(uri: MetadataUri) -> None:
    assert MetadataUri.parse(str(uri)) == uri


# ---- logs ----

_HEAD = LogHead(
    log_id=TOKEN,
    root="/ledgers",
    changes=(TOKEN,),
    start=Position(0, -1, 0),
    pages=(PageRef(f"0-{TOKEN}"),),
    tail_ordinal=2,
    tail=(SegmentFacts(12, 99, 102400), SegmentFacts(13, 20, 10, 5), SegmentFacts(14)),
    open_ordinals=(4,),
    writer=TOKEN,
    last_epochs=(("q1", 7),),
    condemned=(TOKEN,),
    has_slices=True,
)


_HEAD_TEXT = formats.encode_head(_HEAD)


def _log_node(data: bytes) -> tuple[str, Any]:
    draw = Draw(data)
    kind = draw.choice(("head", "page", "condemned", "pending", "delta", "record"))
    text = draw.rest()
    decoders = {
        "head": lambda: formats.decode_head(text, "/p"),
        "page": lambda: formats.decode_page(text, "/p"),
        "condemned": lambda: formats.decode_condemned(text, "/p"),
        "pending": lambda: formats.decode_pending(text, "/p", 7, 5),
        "delta": lambda: (delta.decode_base(text, "/p"), delta.decode_changed(_HEAD_TEXT, text, "x"))[1],
        "record": lambda: routing.decoded_record(text, "/p", 3),
    }
    return kind, decoders[kind]()


def _log_node_encodes_again(found: tuple[str, Any]) -> None:
    kind, value = found
    if kind in ("head", "delta"):
        assert formats.decode_head(formats.encode_head(value), "/p") == value
    elif kind == "page":
        assert formats.decode_page(formats.encode_page(*value), "/p") == value
    elif kind == "condemned":
        assert formats.decode_condemned(formats.encode_condemned(value), "/p") == value
    elif kind == "pending":
        assert formats.decode_pending(formats.encode_pending(value.owner, value.since), "/p", 7, 5) == value


def _log_node_seeds() -> Iterator[bytes]:
    yield b"\0" + formats.encode_head(_HEAD)
    yield b"\0" + formats.encode_head(LogHead(TOKEN, "/ledgers", (TOKEN,)))
    yield b"\1" + formats.encode_page(5, _HEAD.tail[:1])
    yield b"\2" + formats.encode_condemned([12, 13])
    yield b"\3" + formats.encode_pending(SegmentOwner("query", "q1", 7, 3, 0), 40)
    yield b"\3" + formats.encode_pending(SegmentOwner("writer", "w"), 0)
    longer = replace(_HEAD, tail=(*_HEAD.tail[1:], SegmentFacts(15, 3, 9)), last_epochs=(("q1", 8),), open_ordinals=())
    yield b"\4" + delta.encode_delta(17, _HEAD, longer)
    yield b"\5" + b'{"commit":"00000000000000aa","published":[["q1",7],["app",3,"q2"]],"version":1}'


def _place(data: bytes) -> object:
    return parse_place(data.decode("utf-8", "replace"))


def _place_is_text_again(place: object) -> None:
    assert parse_place(str(place)) == place


_REFUSED = (MetadataFormat,)
_VERSION_LINE = b"BookieMetadataFormatVersion\t"

TARGETS = (
    Target(
        "metadata-ledger",
        _ledger_metadata,
        _REFUSED,
        _encodes_again,
        _metadata_seeds,
        (_VERSION_LINE, b"segment {", b"ensembleMember: ", b"state: OPEN", b"customMetadata {", b"\tCLOSED"),
    ),
    Target("metadata-ledger-built", _metadata_built, (), None, lambda: [bytes(range(100)), bytes(range(200, 90, -1))]),
    Target(
        "metadata-cookie", lambda data: cookies.decode(data, "here"), _REFUSED, _cookie_encodes_again, _cookie_seeds
    ),
    Target(
        "metadata-registration",
        lambda data: registration.decode(data, "10.0.0.1:3181"),
        _REFUSED,
        _registration_encodes_again,
        _registration_seeds,
    ),
    Target(
        "metadata-underreplication",
        _underreplicated,
        _REFUSED,
        _underreplicated_encodes_again,
        lambda: [underreplication.encode(["10.0.0.1:3181", "b-2"], 17), b'replica: "a"\nunknown { x: 1 }\n'],
        (b"replica: ", b"ctime: ", b"unknown {"),
    ),
    Target(
        "metadata-racks",
        lambda data: racks.decode(data, "/bookies"),
        _REFUSED,
        None,
        lambda: [b'{"g": {"10.0.0.1:3181": {"rack": "/r1", "hostname": "h"}}}', b""],
        (b'"rack": ', b"{", b"}"),
    ),
    Target(
        "metadata-texts",
        _texts,
        (MetadataFormat,),
        None,
        lambda: [
            b"\0" + layout.encode(LedgerManager.HIERARCHICAL),
            b'\1bookieId: "b-1"\n',
            b"\x0200/0001/L2345",
            b"\x02000/0000/0021/4748/L3647",
            b"\x0312",
            b"\x04V_0000000001",
        ],
    ),
    Target(
        "metadata-uri",
        _uri,
        (ConfigurationError,),
        _uri_is_text_again,
        lambda: [b"zk+hierarchical://host:2181;[::1]:2182/ledgers/a", b"zk://h/ledgers", b"zk+null://a,b:1/r"],
        (b"zk+flat://", b"longhierarchical", b"[::1]"),
    ),
    Target("log-nodes", _log_node, _REFUSED, _log_node_encodes_again, _log_node_seeds),
    Target(
        "log-positions",
        _place,
        (BookKeeperError,),
        _place_is_text_again,
        lambda: [str(Position(3, 12, 5)).encode(), b"earliest", b" Latest "],
    ),
)
