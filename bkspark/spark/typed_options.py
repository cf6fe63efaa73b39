"""Options: the options of `format("bookkeeper")` as a typed value, for completion in editors and for type checkers.

    clicks = Options(uri="zk://127.0.0.1:2181/ledgers", log="clicks", payloadFormat="arrow")
    spark.read.format("bookkeeper").options(**clicks).load()
    spark.readStream.format("bookkeeper").options(**clicks.but(maxEntriesPerTrigger=10_000)).load()

Names are those of `options`, which says what each means. An error in any use (a name, a value, two options that exclude
each other) is raised when the value is made; an option without effect on a read or a write, when that is planned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import index
from typing import Any, Literal, SupportsIndex, TypedDict, Unpack, cast

from bkspark.errors import ConfigurationError
from bkspark.spark.option_table import CLIENT_PREFIX
from bkspark.spark.option_values import shown
from bkspark.spark.options import SourceOptions
from bkspark.spark.write_options import LEDGER_METADATA
from bkspark.spark.zookeeper_options import ZOOKEEPER

Size = int | str
"""Bytes, or text such as "64m"."""
Offset = str | int | Mapping[str, Any]
"""`earliest`, `latest`, -N entries before the end, a position, or with logsPattern such an offset by log."""
Moment = str | int | datetime
"""Milliseconds since 1970, ISO 8601, "-10m", or a datetime (UTC unless it says)."""


class OptionTypes(TypedDict, total=False):
    """Every option, with the type of its values."""

    uri: str
    log: str
    logsPattern: str
    topic: str
    topics: str
    topicsPattern: str
    pulsarUri: str
    pulsarConfigurationUri: str
    valueFormat: Literal["auto", "raw"]
    isolation: Literal["read_committed", "read_uncommitted"]
    encrypted: Literal["fail", "skip", "raw"]
    readCompacted: bool
    publishTimeSlack: str
    startingSubscription: str
    ledgers: str | int | Sequence[int]
    inspect: Literal["ledgers", "logs", "bookies", "fragments", "consumers", "topics", "topicLedgers", "subscriptions"]
    passwordFile: str
    password: str
    encryptionKeyFile: str
    tlsProviderFactoryClass: str
    tlsTrustStore: str
    tlsTrustStoreType: Literal["PEM", "PKCS12", "JKS"]
    tlsTrustStorePasswordPath: str
    tlsKeyStore: str
    tlsKeyStoreType: Literal["PEM", "PKCS12", "JKS"]
    tlsKeyStorePasswordPath: str
    tlsCertificatePath: str
    tlsClientAuthentication: bool
    tlsHostnameVerificationEnabled: bool
    tlsEnabledProtocols: str
    tlsEnabledCipherSuites: str
    tlsCertFilesRefreshDurationSeconds: int
    startTLSTimeoutSecs: int
    clientAuthProviderFactoryClass: str
    saslJaasConfig: str
    clientRole: Literal["standard", "system"]
    saslJaasClientSectionName: str
    saslJaasAuditorSectionName: str
    allowAuthDisabled: bool
    zkEnableSecurity: bool
    zkFurtherAcls: str
    startingOffsets: Offset
    endingOffsets: Offset
    startingTimestamp: Moment
    endingTimestamp: Moment
    payloadFormat: Literal["raw", "json", "msgpack", "arrow", "pulsar"]
    mode: Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
    columnNameOfCorruptRecord: str
    jsonDialect: Literal["strict", "spark"]
    includeMetadata: bool
    failOnDataLoss: bool
    recover: bool
    unconfirmed: bool
    maxPartitionBytes: Size
    maxEntriesPerPartition: int
    minPartitions: int
    maxEntriesPerTrigger: int
    maxBytesPerTrigger: Size
    minEntriesPerTrigger: int
    maxTriggerDelay: str
    consumer: str
    consumerExpiry: str
    digestType: Literal["crc32c", "crc32", "mac", "dummy"]
    ensembleSize: int
    writeQuorum: int
    ackQuorum: int
    ledgerType: Literal["PD_JOURNAL", "VD_JOURNAL", "VD_BYPASS_JOURNAL"]
    ifExists: Literal["append", "error", "ignore"]
    txnAppId: str
    txnVersion: int
    ifPublished: Literal["error", "skip"]
    maxLedgerBytes: Size
    maxLedgerAge: str
    inlineBytes: Size
    entryTargetBytes: Size
    compression: Literal["none", "lz4", "zstd"]
    compressionLevel: int
    mergeSchema: bool
    overwriteSchema: bool
    ledgerMetadata: Mapping[str, str]
    bookkeeper: Mapping[str, str | int]
    zookeeper: Mapping[str, str | bool]


_LEDGERS = "ledgers"
_PREFIXES = (LEDGER_METADATA.rstrip("."), CLIENT_PREFIX.rstrip("."), ZOOKEEPER)
_OFFSETS = ("startingOffsets", "endingOffsets")
_MOMENTS = ("startingTimestamp", "endingTimestamp")
_TEXTS = "text, a whole number, true or false"
_TAKEN = {
    _LEDGERS: "text, a whole number or a list of ledger ids",
    **dict.fromkeys(_OFFSETS, "text, a whole number or a mapping"),
    **dict.fromkeys(_MOMENTS, "text, whole milliseconds or a datetime"),
}
"""What an option accepts, in words for messages; `_TEXTS` for options that are not listed here."""


class Options(Mapping[str, str]):
    """Checked options, by name, as the texts that Spark expects. Immutable; equal to any mapping of the same texts.

    Raises:
        ConfigurationError: as `SourceOptions.parse`; `uri` may come from the environment.
    """

    def __init__(self, **options: Unpack[OptionTypes]) -> None:
        self._given = dict(options)
        """The options as given, not as texts: for `repr` and changes."""
        self._texts = _texts(self._given)
        SourceOptions.parse(self._texts)

    def but(self, **changes: Unpack[OptionTypes]) -> Options:
        """Return these options with some changed or added."""
        return Options(**cast(OptionTypes, self._given | dict(changes)))

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __repr__(self) -> str:
        shown = {name: "***" if name == "password" else value for name, value in self._given.items()}
        return f"Options({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in given.items():
        if name not in _PREFIXES:
            texts[name] = _text(name, value)
        elif isinstance(value, Mapping):
            texts |= {f"{name}.{key}": _text(name, item) for key, item in value.items()}
        else:
            raise ConfigurationError(f"option '{name}' is {value!r}, which is not a mapping: give {{'key': 'value'}}")
    return texts


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, SupportsIndex):  # numpy's whole numbers, too
        return str(index(value))
    if isinstance(value, datetime) and name in _MOMENTS:
        return value.isoformat()
    if isinstance(value, Sequence) and name == _LEDGERS and not isinstance(value, bytes):
        return _json(name, list(value))
    if isinstance(value, Mapping) and name in _OFFSETS:
        return _json(name, dict(value))
    raise ConfigurationError(f"option '{name}' is of type {type(value).__name__}: give {_TAKEN.get(name, _TEXTS)}")


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, default=index)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"option '{name}' is {shown(value)}, which cannot be made JSON: {error}") from None
