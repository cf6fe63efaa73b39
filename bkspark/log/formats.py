"""The nodes of a log in the metadata store. PURE.

    /bkspark/logs/<name>                    the head: everything that decides; changed only by compare-and-set
    /bkspark/logs/<name>/pages/<page>       a run of the list of ledgers; never changed once written
    /bkspark/logs/<name>/pending/<ledger>   a ledger that an attempt writes and the list does not hold (yet)
    /bkspark/logs/<name>/condemned/<list>   ledgers to delete: taken from the list, or never put into it
    /bkspark/logs/<name>/condemned/deleted-<id>    empty: the log with this id is being deleted
    /bkspark/logs/<name>/schemas/<schema>   a payload format and schema of entries: `schemas` specifies it

A node is JSON text, ASCII, keys sorted, no spaces, every key present and no other. `version` is 1, or 2 for a head with
slices, 3 for one that names queries, 4 for one with schemas, 5 for one with times or retention, 6 for one with a delta.
Numbers are whole, below 2^63. A *ledger* in a list is `[id]` if its end was unknown when it was listed, `[id, last
entry, bytes]` if it was closed. Its *ordinal* is its index in the log's list, counted from 0 and never reused. A
*token* is 16 hexadecimal digits chosen at random.

A *slice* is part of a shared ledger, to which one process appends epoch after epoch: `[id, last entry, bytes, first
entry]`; a first entry of 0 is omitted. The ledger may have other entries before and after the slice, of other slices or
of failed attempts; they are not part of the log. If the entries that follow the last item of `tail` in its ledger are
published next, that item grows in place: its ordinal stays, its last entry and bytes increase. A reader therefore never
reads a listed ledger beyond its listed last entry, whatever the ledger itself says.

Head:

    version        1, or 2 once the log has had a slice: an older bkspark would read beyond the ends of slices. 3 while
                   `last_epochs` names a query: an older one would drop the rows of another query as a repetition. 4
                   once a schema was recorded: an older one would append what does not fit. 6 while `routed` is there:
                   an older one would not see what routed commits published
    id             token of the log: it differs when a log of that name is deleted and created again
    root           the ledgers root of the cluster that holds the ledgers: `/ledgers`
    first_ordinal  ordinal of the first ledger that is still in the log
    start          [ordinal, ledger, entry]: the position (positions.py) of the first entry still in the log
    pages          names of pages in order; `<first ordinal>-<token>`. A page ends where the next begins
    tail_ordinal   ordinal of the first ledger of `tail`; the last page ends there
    tail           ledgers after the last page
    open           ordinals of ledgers that were not known to be closed when the head was written; at most a few
    writer         token of the process that last opened the log for writing; null after its close
    last_epochs    [name, version] or [name, version, query], in order of publishing, the latest last: the last version
                   that was published under a name. A streaming query's name is its id, the version its epoch. If a
                   query publishes under a name that the user chose (txnAppId), its id is the third member, and the name
                   has an item for each of its last 8 queries. Each of these may repeat versions up to its own last one,
                   which changes nothing; others may not publish versions up to the highest of the name
    changes        tokens of the latest changes, the newest last; the version of the head's node counts the changes. By
                   its token, a change whose answer was lost is recognised
    condemned      names of the lists of condemned ledgers that still have to be deleted
    deleted        true while the log is being deleted. The same change creates the node `condemned/deleted-<id>`. All
                   later changes check that it exists, and the last one deletes it: a new log of the same name, whose
                   node may have the same version, does not have it. A deletion that an earlier bkspark began gets it
                   when it is continued
    slices, times, retention    only from version 5 on: whether the log has had a slice; when its entries entered it
                   (`times`), and how long it keeps them (`retention`): an older bkspark would append without a time
    schemas        in version 4, and from 5 on if the log has a schema; never empty: [first ordinal, number, schema] by
                   ascending ordinal. The schema (the name of its node, 32 hexadecimal digits) applies from that ordinal
                   up to that of the next item. Ledgers before the first item were written without a schema. Numbers
                   count the log's schemas from 1
    routed         only in version 6, true: the log was in a routed commit, so its node `delta` must be read, too
                   (delta.py)

`{"changes":["00000000000000aa"],"condemned":[],"deleted":false,"first_ordinal":0,"id":"00000000000000aa",
"last_epochs":[["q1",7]],"open":[1],"pages":[],"root":"/ledgers","start":[0,-1,0],"tail":[[12,99,102400],[13]],
"tail_ordinal":0,"version":1,"writer":null}` is a log (on one line) of two ledgers, the second open.

Page: `{"first_ordinal":0,"ledgers":[[12,99,102400]],"version":1}`. It may begin before the log's first ordinal.

Pending: `{"attempt":0,"epoch":7,"kind":"query","owner":"q1","partition":3,"since":40,"version":1}`: whose attempt
(`query`, `job` or `writer`, and its id; epoch, partition and attempt may be null) and the log's end ordinal at that
time: the ledger cannot be listed before it.

A shared ledger stays pending as long as its process may publish slices of it; `epoch`, `partition` and `attempt` are
null then.

Condemned: `{"ledgers":[12,13],"version":1}`.

Only `pages` grows with the log, by some 30 bytes for 2,000 ledgers: 15 KiB for a million.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from bkspark.errors import ConfigurationError, MetadataError, MetadataFormat
from bkspark.ids import (
    ENTRY_ID_MAX,
    LEDGER_ID_MAX,
    LOG_NAME_RULE,
    NAME_LENGTH_MAX,
    NO_ENTRY,
    PUBLISHER_RULE,
    is_log_name,
    is_publisher,
)
from bkspark.log.node import VERSION, NodeMembers
from bkspark.log.positions import BEGINNING, NO_LEDGER, Position
from bkspark.log.retention import UNLIMITED, Retention
from bkspark.log.times import EMPTY, TimeIndex, index_from_json, index_to_json

SLICES_VERSION = 2
QUERIES_VERSION = 3
SCHEMAS_VERSION = 4
TIMES_VERSION = 5
ROUTED_VERSION = 6
LOGS_ROOT = "/bkspark/logs"
PAGES, PENDING, CONDEMNED = "pages", "pending", "condemned"

APPLICATION_KEY, APPLICATION = "application", "bkspark"
LOG_KEY = "log"
"""Custom metadata by which a ledger of a log names its log."""
OWN_METADATA = frozenset({APPLICATION_KEY, LOG_KEY})
"""Custom metadata that users may not set: a vacuum finds the log's ledgers by them."""

NODE_BYTES_MAX = 1_000_000
"""ZooKeeper refuses requests of 1 MiB and more (jute.maxbuffer); a node's path and headers need room too."""

PAGE_LEDGERS_MAX = 2_000
TAIL_LEDGERS_MAX = 200
LAST_EPOCHS_MAX = 1_000
QUERIES_OF_A_NAME_MAX = 8
CHANGES_MAX = 32
CONDEMNED_LEDGERS_MAX = 10_000
CONDEMNED_LISTS_MAX = 2_000
HEADS_CACHED_MAX = 16
"""Decoded heads that a process caches: a commit reads the head several times, and usually gets the same bytes."""

T = TypeVar("T")


def own_metadata(log: str) -> dict[str, bytes]:
    """Return the custom metadata that every ledger is created with for a log."""
    return {APPLICATION_KEY: APPLICATION.encode(), LOG_KEY: log.encode()}


def ledger_identity(log: str) -> dict[str, bytes]:
    """Return the custom metadata of all ledgers that a log has registered. A ledger without them is another one, which
    was created with the id of a deleted one.

    The application does not count: early builds let users set it.
    """
    return {LOG_KEY: log.encode()}


_TOKEN = re.compile(r"[0-9a-f]{16}")
_SCHEMA_NAME = re.compile(r"[0-9a-f]{32}")
_PAGE_NAME = re.compile(r"(0|[1-9][0-9]{0,18})-[0-9a-f]{16}")
_OWNER_KINDS = ("query", "job", "writer")


def check_log_name(name: str) -> str:
    """Return `name` unchanged when a log can have it.

    Raises:
        ConfigurationError: it is empty, too long, `.` or `..`, or contains a character that is not allowed.
    """
    if not is_log_name(name):
        raise ConfigurationError(f"log name {str(name)[: NAME_LENGTH_MAX + 1]!r} is not usable: {LOG_NAME_RULE}")
    return name


def log_path(name: str) -> str:
    """Return the path of a log's head. Raises ConfigurationError for an unusable name."""
    return f"{LOGS_ROOT}/{check_log_name(name)}"


def pending_path(name: str, ledger_id: int) -> str:
    """Return the path of a pending ledger's registration."""
    return f"{log_path(name)}/{PENDING}/{ledger_id}"


def deletion_node(log_id: str) -> str:
    """Return the path, below a log's, of the node of its deletion, which exists while the log is being deleted."""
    return f"{CONDEMNED}/deleted-{log_id}"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A ledger, or a slice of one, as a log lists it.

    `length`: payload bytes of the entries from `first_entry` to `last_entry`. Both are None if the end was unknown when
    the ledger was listed.
    """

    ledger_id: int
    last_entry: int | None = None
    length: int | None = None
    first_entry: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.ledger_id <= LEDGER_ID_MAX:
            raise ValueError(f"ledger id {self.ledger_id} is not in 0 to {LEDGER_ID_MAX}")
        if (self.last_entry is None) != (self.length is None):
            raise ValueError(f"ledger {self.ledger_id}: last entry and length are known together or not at all")
        if self.first_entry and not 0 <= self.first_entry <= (NO_ENTRY if self.last_entry is None else self.last_entry):
            raise ValueError(f"ledger {self.ledger_id}: first entry {self.first_entry}, last entry {self.last_entry}")
        if self.last_entry is None or self.length is None:
            return
        if not NO_ENTRY <= self.last_entry < ENTRY_ID_MAX or not 0 <= self.length <= ENTRY_ID_MAX:
            raise ValueError(f"ledger {self.ledger_id}: last entry {self.last_entry}, length {self.length}")

    @property
    def is_known_closed(self) -> bool:
        return self.last_entry is not None

    def joined(self, after: SegmentFacts) -> SegmentFacts | None:
        """Return this slice and the next one as one; None if they are not adjacent in one ledger."""
        if self.ledger_id != after.ledger_id or self.last_entry is None or after.last_entry is None:
            return None
        if self.last_entry + 1 != after.first_entry or self.length is None or after.length is None:
            return None
        return SegmentFacts(self.ledger_id, after.last_entry, self.length + after.length, self.first_entry)


@dataclass(frozen=True, slots=True)
class SegmentOwner:
    """The owner of the attempt that writes a pending ledger. `owner_id` is the id of a streaming query, a batch job or
    a log writer."""

    kind: str
    """"query", "job" or "writer"."""
    owner_id: str
    epoch: int | None = None
    """The query's micro-batch; None: a ledger that epochs share, or no query."""
    partition: int | None = None
    """The Spark partition, and the `attempt` at it (a task's attempt id); None: no task writes the ledger."""
    attempt: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _OWNER_KINDS:
            raise ValueError(f"owner kind {self.kind!r} is not one of {', '.join(_OWNER_KINDS)}")
        check_publisher(self.owner_id, 0 if self.epoch is None else self.epoch)

    @property
    def shares(self) -> bool:
        """Whether the ledger is shared by epochs, so that slices of it are published while it is pending."""
        return self.kind == "query" and self.epoch is None


@dataclass(frozen=True, slots=True)
class PendingLedger:
    """A ledger that an attempt writes. `since`: the log's end ordinal at its creation; `ctime_ms`: the node's creation
    time."""

    ledger_id: int
    owner: SegmentOwner
    since: int
    ctime_ms: int = 0


class Publisher(NamedTuple):
    """A publisher: a streaming query's id and its epoch, or an application's name and its version.

    `query` is the id of the streaming query that publishes under an application's name, or None.
    """

    name: str
    version: int
    query: str | None = None


LastEpoch = tuple[str, int] | tuple[str, int, str]
"""(name, version) or (name, version, query): an item of `last_epochs`."""


def check_publisher(query_id: str, epoch: int, query: str | None = None) -> None:
    """Raise ConfigurationError unless a log can record these as the publisher of an epoch."""
    for each in (query_id,) if query is None else (query_id, query):
        if not is_publisher(each):
            raise ConfigurationError(f"query or job id {str(each)[:NAME_LENGTH_MAX]!r} must be {PUBLISHER_RULE}")
    if type(epoch) is not int or not 0 <= epoch <= ENTRY_ID_MAX:
        raise ConfigurationError(f"epoch {epoch!r} of {query_id!r} must be a whole number of at least 0")


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page by name; the name begins with the ordinal of its first ledger."""

    name: str

    @property
    def first_ordinal(self) -> int:
        return int(self.name.partition("-")[0])


class SchemaRef(NamedTuple):
    """A schema by name, the first ordinal to which it applies, and its number in the log."""

    first_ordinal: int
    number: int
    name: str


@dataclass(frozen=True)
class LogHead:
    """The head's content; the module's docstring says what each field means."""

    log_id: str
    root: str
    changes: tuple[str, ...]
    first_ordinal: int = 0
    start: Position = BEGINNING
    pages: tuple[PageRef, ...] = ()
    tail_ordinal: int = 0
    tail: tuple[SegmentFacts, ...] = ()
    open_ordinals: tuple[int, ...] = ()
    writer: str | None = None
    last_epochs: tuple[LastEpoch, ...] = ()
    condemned: tuple[str, ...] = ()
    is_deleted: bool = False
    has_slices: bool = False
    schemas: tuple[SchemaRef, ...] = ()
    times: TimeIndex = EMPTY
    retention: Retention = UNLIMITED
    is_routed: bool = False

    @property
    def end_ordinal(self) -> int:
        """The ordinal that the next ledger gets."""
        return self.tail_ordinal + len(self.tail)

    @property
    def version(self) -> int:
        """The lowest format version that can represent this head."""
        if self.is_routed:
            return ROUTED_VERSION
        if not self.times.is_empty or self.retention != UNLIMITED:
            return TIMES_VERSION
        if self.schemas:
            return SCHEMAS_VERSION
        if any(len(item) == 3 for item in self.last_epochs):
            return QUERIES_VERSION
        return SLICES_VERSION if self.has_slices else VERSION

    @property
    def page_names(self) -> list[str]:
        return [*(page.name for page in self.pages), *(page.name for page in self.times.pages)]

    def page_end(self, index: int) -> int:
        """Return the ordinal after the last ledger of pages[index]."""
        return self.pages[index + 1].first_ordinal if index + 1 < len(self.pages) else self.tail_ordinal

    def with_change(self, token: str) -> LogHead:
        """Return the head with the change `token` added to its latest changes."""
        return replace(self, changes=(*self.changes, token)[-CHANGES_MAX:])


# ---- to bytes ----


def encode_head(head: LogHead) -> bytes:
    """Return the head's node.

    Raises:
        MetadataError: it would not fit into a node.
    """
    return _encode(
        {
            "version": head.version,
            "id": head.log_id,
            "root": head.root,
            "first_ordinal": head.first_ordinal,
            "start": [head.start.ordinal, head.start.ledger_id, head.start.entry_id],
            "pages": [page.name for page in head.pages],
            "tail_ordinal": head.tail_ordinal,
            "tail": _listed(head.tail),
            "open": list(head.open_ordinals),
            "writer": head.writer,
            "last_epochs": [list(item) for item in head.last_epochs],
            "changes": list(head.changes),
            "condemned": list(head.condemned),
            "deleted": head.is_deleted,
            **({"schemas": [list(ref) for ref in head.schemas]} if head.schemas else {}),
            **(_timed_members(head) if head.version >= TIMES_VERSION else {}),
            **({"routed": True} if head.is_routed else {}),
        }
    )


def _timed_members(head: LogHead) -> dict[str, Any]:
    retention = None if head.retention == UNLIMITED else head.retention.to_json()
    times = None if head.times.is_empty else index_to_json(head.times)
    return {"slices": head.has_slices, "times": times, "retention": retention}


def encode_page(first_ordinal: int, ledgers: Sequence[SegmentFacts]) -> bytes:
    """Return the node of a page. Raises MetadataError if it is too large, as all `encode_...` do."""
    return _encode({"version": VERSION, "first_ordinal": first_ordinal, "ledgers": _listed(ledgers)})


def encode_condemned(ledger_ids: Sequence[int]) -> bytes:
    """Return the node of a list of condemned ledgers."""
    return _encode({"version": VERSION, "ledgers": list(ledger_ids)})


def encode_pending(owner: SegmentOwner, since: int) -> bytes:
    """Return the node of a pending ledger. `since`: the log's end ordinal at its creation."""
    return _encode(
        {
            "version": VERSION,
            "kind": owner.kind,
            "owner": owner.owner_id,
            "epoch": owner.epoch,
            "partition": owner.partition,
            "attempt": owner.attempt,
            "since": since,
        }
    )


def _encode(members: Mapping[str, Any]) -> bytes:
    data = json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii")
    if len(data) > NODE_BYTES_MAX:
        raise MetadataError(
            f"a node of the log would have {len(data)} bytes, the limit is {NODE_BYTES_MAX}: truncate or vacuum the log"
        )
    return data


def _listed(ledgers: Sequence[SegmentFacts]) -> list[list[int]]:
    return [
        [facts.ledger_id]
        if facts.last_entry is None or facts.length is None
        else [facts.ledger_id, facts.last_entry, facts.length, *([facts.first_entry] if facts.first_entry else [])]
        for facts in ledgers
    ]


# ---- from bytes ----


@lru_cache(maxsize=HEADS_CACHED_MAX)
def decode_head(data: bytes, path: str) -> LogHead:
    """Return the head. Raises MetadataFormat, which names `path`, for anything but a head of version 1 to 6."""
    node = _Node(data, path, "log head", version_max=ROUTED_VERSION)
    start = node.whole_list("start", lowest=NO_LEDGER)
    if len(start) != 3 or start[0] < 0 or start[2] < 0:
        raise node.error("start is not [ordinal, ledger, entry]")
    head = LogHead(
        log_id=node.token("id"),
        root=node.text("root"),
        changes=node.texts("changes", _TOKEN),
        first_ordinal=node.whole("first_ordinal"),
        start=Position(*start),
        pages=tuple(PageRef(name) for name in node.texts("pages", _PAGE_NAME)),
        tail_ordinal=node.whole("tail_ordinal"),
        tail=node.ledgers("tail"),
        open_ordinals=tuple(node.whole_list("open")),
        writer=None if node.value("writer") is None else node.token("writer"),
        last_epochs=node.epochs("last_epochs"),
        condemned=node.texts("condemned", _TOKEN),
        is_deleted=node.flag("deleted"),
        has_slices=node.flag("slices") if node.version >= TIMES_VERSION else node.version >= SLICES_VERSION,
        schemas=node.schemas("schemas") if node.version == SCHEMAS_VERSION or node.has("schemas") else (),
        times=node.parsed("times", index_from_json) or EMPTY if node.version >= TIMES_VERSION else EMPTY,
        retention=node.parsed("retention", Retention.from_json) or UNLIMITED
        if node.version >= TIMES_VERSION
        else UNLIMITED,
        is_routed=node.has("routed") and node.flag("routed"),
    )
    node.end()
    _check_head(head, node)
    return head


def _check_head(head: LogHead, node: _Node) -> None:
    firsts = [page.first_ordinal for page in head.pages]
    if any(after <= before for before, after in zip(firsts, [*firsts[1:], head.tail_ordinal])):
        raise node.error("its pages do not ascend")
    if not (firsts[0] if firsts else head.tail_ordinal) <= head.first_ordinal <= head.end_ordinal:
        raise node.error(f"first_ordinal {head.first_ordinal} lies outside the list")
    if not head.changes:
        raise node.error("changes is empty")
    if any(not head.first_ordinal <= ordinal < head.end_ordinal for ordinal in head.open_ordinals):
        raise node.error("open names a ledger outside the list")
    if not head.has_slices and any(facts.first_entry for facts in head.tail):
        raise node.error("it says that it has no slices, but tail holds a slice")


def decode_page(data: bytes, path: str) -> tuple[int, tuple[SegmentFacts, ...]]:
    """Return the ordinal of a page's first ledger, and its ledgers. Raises MetadataFormat as `decode_head`."""
    node = _Node(data, path, "page of a log")
    first_ordinal, ledgers = node.whole("first_ordinal"), node.ledgers("ledgers")
    node.end()
    return first_ordinal, ledgers


def decode_condemned(data: bytes, path: str) -> tuple[int, ...]:
    """Return the ids of a list of condemned ledgers. Raises MetadataFormat as `decode_head`."""
    node = _Node(data, path, "list of condemned ledgers")
    ids = node.whole_list("ledgers")
    node.end()
    return tuple(ids)


def decode_pending(data: bytes, path: str, ledger_id: int, ctime_ms: int) -> PendingLedger:
    """Return a pending ledger. Raises MetadataFormat as `decode_head`."""
    node = _Node(data, path, "pending ledger")
    facts = {key: node.value(key) for key in ("epoch", "partition", "attempt")}
    numbers = {key: None if value is None else node.whole(key) for key, value in facts.items()}
    kind, owner_id, since = node.text("kind"), node.text("owner"), node.whole("since")
    node.end()
    try:
        owner = SegmentOwner(kind, owner_id, **numbers)
    except (ValueError, ConfigurationError) as error:
        raise node.error(str(error)) from None
    return PendingLedger(ledger_id, owner, since, ctime_ms)


def parse_pending_name(name: str, path: str) -> int:
    """Return the ledger id that a child of `pending` is named after. Raises MetadataFormat."""
    if not re.fullmatch("[0-9]{1,19}", name) or int(name) > LEDGER_ID_MAX:
        raise MetadataFormat(f"metadata node {path}/{name} is not named after a ledger id: remove it")
    return int(name)


_set_id, _set_last, _set_length, _set_first = (
    getattr(SegmentFacts, name).__set__ for name in ("ledger_id", "last_entry", "length", "first_entry")
)


def _closed(value: Any) -> SegmentFacts | None:
    """Return a closed ledger of a list; None if the value is anything else. This is the fast path: a plan may decode
    100,000 of them."""
    if type(value) is not list or len(value) != 3:
        return None
    ledger_id, last_entry, length = value
    if not type(ledger_id) is type(last_entry) is type(length) is int or not 0 <= ledger_id <= LEDGER_ID_MAX:
        return None
    if not NO_ENTRY <= last_entry < ENTRY_ID_MAX or not 0 <= length <= ENTRY_ID_MAX:
        return None
    facts = SegmentFacts.__new__(SegmentFacts)
    _set_id(facts, ledger_id)
    _set_last(facts, last_entry)
    _set_length(facts, length)
    _set_first(facts, 0)
    return facts


class _Node(NodeMembers):
    """The members of a node of a log."""

    def has(self, key: str) -> bool:
        """Return whether a node of a version above SCHEMAS_VERSION has this optional member."""
        return self.version > SCHEMAS_VERSION and key in self.members

    def token(self, key: str) -> str:
        value = self.text(key)
        if not _TOKEN.fullmatch(value):
            raise self.error(f"{key} is not 16 hexadecimal digits")
        return value

    def ledgers(self, key: str) -> tuple[SegmentFacts, ...]:
        try:
            return tuple(_closed(value) or SegmentFacts(*self._as_ledger(key, value)) for value in self.items(key))
        except ValueError as error:
            raise self.error(str(error)) from None

    def epochs(self, key: str) -> tuple[LastEpoch, ...]:
        values = self.items(key)
        lengths = (2, 3) if self.version >= QUERIES_VERSION else (2,)
        for value in values:
            if not isinstance(value, list) or len(value) not in lengths or not isinstance(value[0], str):
                raise self.error(f"{key} has an item that is not [name, version] or [name, version, query]")
            self.as_whole(key, value[1], 0)
            if len(value) == 3 and not isinstance(value[2], str):
                raise self.error(f"{key} holds a query that is not text")
        return tuple(tuple(value) for value in values)

    def schemas(self, key: str) -> tuple[SchemaRef, ...]:
        found: list[SchemaRef] = []
        for value in self.items(key):
            if not isinstance(value, list) or len(value) != 3:
                raise self.error(f"{key} has an item that is not [first ordinal, number, schema]")
            ref = SchemaRef(self.as_whole(key, value[0], 0), self.as_whole(key, value[1], 1), value[2])
            if not isinstance(ref.name, str) or not _SCHEMA_NAME.fullmatch(ref.name):
                raise self.error(f"{key} holds {str(ref.name)[:100]!r}")
            if found and not (found[-1].first_ordinal < ref.first_ordinal and found[-1].number < ref.number):
                raise self.error(f"{key} does not ascend")
            found.append(ref)
        if not found:
            raise self.error(f"{key} is empty")
        return tuple(found)

    def _as_ledger(self, key: str, value: Any) -> list[int]:
        if not isinstance(value, list) or len(value) not in (1, 3, 4) or any(type(item) is not int for item in value):
            raise self.error(f"{key} has an item that is not [id] or [id, last entry, bytes] or a slice")
        if len(value) == 4 and not value[3] > 0:
            raise self.error(f"{key} holds a slice with first entry {value[3]}")
        return value
