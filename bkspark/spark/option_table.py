"""The table of all options of `format("bookkeeper")`, by their names and by what they are used for."""

from __future__ import annotations

from typing import Any

from bkspark.secret_files import ENCRYPTION_KEY_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE
from bkspark.spark import option_values as values
from bkspark.spark.local_files import LedgerPassword
from bkspark.spark.option import ANY, BATCHES, READS, Option
from bkspark.spark.read_options import READ_OPTIONS
from bkspark.spark.sasl_options import SASL_OPTIONS
from bkspark.spark.tls_options import TLS_OPTIONS
from bkspark.spark.topic_options import TOPIC_OPTIONS
from bkspark.spark.write_options import WRITE_OPTIONS
from bkspark.spark.zookeeper_options import ZOOKEEPER, ZOOKEEPER_OPTIONS

URI_VARIABLE = "BKSPARK_URI"
ENCRYPTION_KEYS = "encryption_key_file"
PASSWORD = "ledger_password"
"""The field of `password` and `passwordFile`."""

PULSARS_VIEWS = ("topics", "topicLedgers", "subscriptions")
VIEWS = ("ledgers", "logs", "bookies", "fragments", "consumers", *PULSARS_VIEWS)

OPTIONS = (
    Option(
        "uri",
        "uri",
        values.uri,
        ANY,
        f"metadata URI of the cluster, zk://host:port/ledgers; default: {URI_VARIABLE}",
    ),
    Option("log", "log", values.log_name, ANY, "named log to read, follow or append to"),
    Option("logsPattern", "logs_pattern", values.pattern, READS, "regular expression of names of logs to read"),
    Option(
        "ledgers",
        "ledgers",
        values.parse_ledgers,
        READS,
        'ledgers to read: "5", "5,7", "5-9", "[5, 7]", "*", or entries of one: "5:10-99"',
    ),
    *TOPIC_OPTIONS,
    *TLS_OPTIONS,
    *SASL_OPTIONS,
    *ZOOKEEPER_OPTIONS,
    Option("inspect", "inspect", values.OneOf(*VIEWS), BATCHES, "a table about the cluster instead of entries"),
    Option(
        "passwordFile",
        PASSWORD,
        LedgerPassword.in_file,
        ANY,
        f"file with the ledger password, on the driver and every executor; default: {PASSWORD_FILE_VARIABLE}",
    ),
    Option(
        "password",
        PASSWORD,
        LedgerPassword.given,
        ANY,
        f"ledger password itself; default: {PASSWORD_VARIABLE}, else empty",
        "",
    ),
    Option(
        "encryptionKeyFile",
        ENCRYPTION_KEYS,
        values.text,
        ANY,
        "file with the keys that new ledgers are encrypted with and encrypted ones are read with, on the driver and "
        f"every executor; default: {ENCRYPTION_KEY_FILE_VARIABLE}",
    ),
    *READ_OPTIONS,
    *WRITE_OPTIONS,
)
METADATA_OPTION = Option("ledgerMetadata", "ledger_metadata", values.stored_text, ANY, "custom metadata of ledgers")
CLIENT_PREFIX = "bookkeeper."
"""Options of this prefix are settings of the client: `client_settings`."""
_CLIENT = Option("bookkeeper", "client", values.text, ANY, "settings of the client")
_ZOOKEEPER = Option(ZOOKEEPER, ZOOKEEPER, values.text, ANY, "settings of the connection to ZooKeeper")
BY_KEY = {option.name.lower(): option for option in OPTIONS}
BY_USE = {**BY_KEY, **{option.name.lower(): option for option in (METADATA_OPTION, _CLIENT, _ZOOKEEPER)}}


def option_default(name: str) -> Any:
    """Return the value of an option that is not given."""
    option = BY_KEY[name.lower()]
    assert option.default is not None
    return option.check(option.default)
