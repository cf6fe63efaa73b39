"""The options of reads of Pulsar's topics: their values, and which go together. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bkspark.errors import ConfigurationError
from bkspark.log.positions import EARLIEST, LATEST
from bkspark.metadata.uri import MetadataUri
from bkspark.pulsar.names import TopicName
from bkspark.spark import option_values as values
from bkspark.spark.option import BATCHES, READS, Option
from bkspark.spark.option_values import IdRange, Offset

VALUE_FORMATS = AUTO, RAW = ("auto", "raw")
ISOLATIONS = READ_COMMITTED, READ_UNCOMMITTED = ("read_committed", "read_uncommitted")
ENCRYPTED = ("fail", "skip", "raw")
SELECT_TOPICS = frozenset({"topic", "topics", "topicsPattern"})
ADDRESSES = frozenset({"pulsaruri", "pulsarconfigurationuri"})
"""Options that tables about topics have, too."""

_NOT_OF_TOPICS = frozenset({"payloadformat", "jsondialect", "recover", "encryptionkeyfile"})
_PULSAR_FORMAT = "pulsar"
_OFFSETS = ("startingOffsets", "endingOffsets")
_ENDS = frozenset({"endingoffsets", "endingtimestamp"})


def topic(value: str) -> str:
    """Return the name of a topic as it was given, checked."""
    try:
        TopicName.parse(values.text(value))
    except ConfigurationError as error:
        raise ValueError(f"names no topic, such as persistent://public/default/clicks: {values.short(error)}") from None
    return value


def topics(value: str) -> tuple[str, ...]:
    """Return the names of topics, given with commas between them, checked."""
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise ValueError("has an empty name")
    return tuple(map(topic, names))


def topics_pattern(value: str) -> str:
    """Return a pattern as tenant/namespace/PATTERN. It may be given as PATTERN, which is of public/default, and after
    persistent://."""
    domain, separator, rest = value.partition("://")
    if separator and domain != "persistent":
        raise ValueError("does not begin with persistent://")
    whole = rest if separator else value
    parts = (whole if separator or "/" in whole else f"public/default/{whole}").split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError("is neither PATTERN nor tenant/namespace/PATTERN, such as public/default/clicks-.*")
    topic(f"{parts[0]}/{parts[1]}/x")
    values.pattern(parts[2])
    return "/".join(parts)


def pulsar_uri(value: str) -> str:
    """Return the address of Pulsar's metadata as zk://host:port[;host:port]/chroot.

    Brokers write zk:host:port/chroot, or leave the scheme out: then it is an address only if it has a port.
    """
    store, _, rest = value.partition(":")
    if store.lower() in ("etcd", "oxia", "rocksdb", "memory"):
        raise ValueError(f"keeps Pulsar's metadata in {store}, which cannot be read here: only ZooKeeper can")
    has_scheme = store.lower() == "zk"
    hosts = (rest if has_scheme else value).removeprefix("//")
    authority, _, chroot = hosts.partition("/")
    if not authority or (not has_scheme and ("://" in value or ":" not in authority)):
        raise ValueError("is not an address of ZooKeeper, such as zk://host:2181 or zk://host:2181/chroot")
    try:
        # The chroot may be empty, which a metadata URI's is not.
        parsed = MetadataUri.parse(f"zk://{authority}/{chroot.strip('/') or 'ledgers'}")
    except ConfigurationError as error:
        raise ValueError(f"is not a ZooKeeper address such as zk://host:2181/chroot: {values.short(error)}") from None
    return f"zk://{parsed.connect_string.replace(',', ';')}/{chroot.strip('/')}"


def subscription(value: str) -> str:
    """Return the name of a subscription, checked."""
    if not value.strip():
        raise ValueError("is empty: give the name of a subscription, such as my-subscription")
    if not value.isprintable():
        raise ValueError("has characters that cannot be printed: give the name of a subscription")
    return value


TOPIC_OPTIONS = (
    Option("topic", "topic", topic, READS, "Pulsar topic to read: a name, or persistent://tenant/namespace/name"),
    Option("topics", "topics", topics, READS, "Pulsar topics to read, separated by commas"),
    Option(
        "topicsPattern",
        "topics_pattern",
        topics_pattern,
        READS,
        "regular expression of names of Pulsar topics: PATTERN, or tenant/namespace/PATTERN",
    ),
    Option(
        "pulsarUri",
        "pulsar_uri",
        pulsar_uri,
        READS,
        "where Pulsar keeps /managed-ledgers; default: the root of uri's servers",
    ),
    Option(
        "pulsarConfigurationUri",
        "pulsar_configuration_uri",
        pulsar_uri,
        READS,
        "where Pulsar keeps /admin; default: pulsarUri",
    ),
    Option(
        "valueFormat",
        "value_format",
        values.OneOf(*VALUE_FORMATS),
        READS,
        "auto: columns by the topic's schema",
        "auto",
    ),
    Option(
        "isolation",
        "isolation",
        values.OneOf(*ISOLATIONS),
        READS,
        "which messages of transactions are read",
        "read_committed",
    ),
    Option(
        "encrypted",
        "encrypted",
        values.OneOf(*ENCRYPTED),
        READS,
        "what to do with an encrypted message of a topic",
        "fail",
    ),
    Option(
        "readCompacted",
        "read_compacted",
        values.flag,
        BATCHES,
        "the last message of each key of a compacted topic",
        "false",
    ),
    Option(
        "publishTimeSlack",
        "publish_time_slack_ms",
        values.duration,
        READS,
        "how far clocks of Pulsar's producers may be ahead",
        "1h",
    ),
    Option(
        "startingSubscription",
        "starting_subscription",
        subscription,
        READS,
        "begin after what this subscription of the topic acknowledged",
    ),
)
"""Options that have an effect on topics of Pulsar alone."""
_OF_TOPICS = frozenset(option.name.lower() for option in TOPIC_OPTIONS)


class Chosen(Protocol):
    """The part of SourceOptions that the checks use."""

    @property
    def reads_topics(self) -> bool: ...
    @property
    def given(self) -> frozenset[str]: ...
    @property
    def inspect(self) -> str | None: ...
    @property
    def ledger_metadata(self) -> Mapping[str, str]: ...
    @property
    def ledgers(self) -> tuple[IdRange, ...] | None: ...
    @property
    def payload_format(self) -> str | None: ...
    @property
    def read_compacted(self) -> bool: ...
    @property
    def starting_offsets(self) -> Offset | None: ...
    @property
    def ending_offsets(self) -> Offset | None: ...
    @property
    def starting_timestamp(self) -> int | None: ...
    @property
    def starting_subscription(self) -> str | None: ...


def check_topic_options(options: Chosen, known: Mapping[str, Option]) -> None:
    """Raise ConfigurationError if an option of topics is set without a topic, or a topic with an option of others.

    Args:
        known: the options by lower-cased name.
    """
    if not options.reads_topics:
        _check_without_topics(options, known)
        return
    for key in sorted(options.given & _NOT_OF_TOPICS):
        raise ConfigurationError(f"option '{known[key].name}' has no effect on topics of Pulsar: remove it")
    if options.ledger_metadata:
        raise ConfigurationError("option 'ledgerMetadata.*' selects some of 'ledgers': a topic is read completely")
    starts = [options.starting_offsets, options.starting_timestamp, options.starting_subscription]
    count = sum(each is not None for each in starts)
    if count > 1:
        raise ConfigurationError(
            "options 'startingOffsets', 'startingTimestamp' and 'startingSubscription' exclude each other: give one of "
            "them"
        )
    if options.read_compacted and (count or options.given & _ENDS):
        raise ConfigurationError("option 'readCompacted' reads a topic completely: remove the starting and ending ones")
    if "publishtimeslack" in options.given and options.starting_timestamp is None:
        raise ConfigurationError("option 'publishTimeSlack' needs 'startingTimestamp': set that, too, or remove it")


def _check_without_topics(options: Chosen, known: Mapping[str, Option]) -> None:
    is_pulsars = options.payload_format == _PULSAR_FORMAT
    if is_pulsars and options.ledgers is None:
        raise ConfigurationError("payloadFormat pulsar goes with 'ledgers': name topics by option 'topic'")
    # Ledgers of a topic may be named by themselves.
    own = frozenset({"encrypted"}) if is_pulsars else frozenset()
    if options.inspect is not None:
        own = ADDRESSES  # those of tables about other things were refused before
    for key in sorted(options.given & (_OF_TOPICS - own)):
        raise ConfigurationError(
            f"option '{known[key].name}' is for topics of Pulsar: set option 'topic', too, or remove it"
        )
    for name, value in zip(_OFFSETS, (options.starting_offsets, options.ending_offsets)):
        if isinstance(value, str) and value not in (EARLIEST, LATEST):
            raise ConfigurationError(
                f"option '{name}' is {values.shown(value)}, a message id, which goes with option 'topic': give "
                "earliest, latest or a position"
            )
