"""Parses the options of `format("bookkeeper")`: from the texts that Spark passes to values of fields."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from bkspark.errors import ConfigurationError
from bkspark.metadata.uri import without_user
from bkspark.metadata.zookeeper_options import JAAS_FILE, ZooKeeperOptions, read_zookeeper_file, zookeeper_options
from bkspark.secret_files import ENCRYPTION_KEY_FILE_VARIABLE
from bkspark.security.client_keys import client_sasl, read_client_sasl
from bkspark.spark import option_values as values
from bkspark.spark.foreign_options import remedy_of_others
from bkspark.spark.local_files import LedgerPassword
from bkspark.spark.option import Option
from bkspark.spark.option_table import (
    BY_KEY,
    CLIENT_PREFIX,
    ENCRYPTION_KEYS,
    METADATA_OPTION,
    OPTIONS,
    PASSWORD,
    URI_VARIABLE,
)
from bkspark.spark.sasl_options import SASL
from bkspark.spark.tls_options import TLS
from bkspark.spark.write_options import LEDGER_METADATA, NOT
from bkspark.spark.zookeeper_options import ZOOKEEPER
from bkspark.tls.client_keys import FILE_VARIABLE, client_tls, read_client_file

_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself puts among the options of a streaming sink."""
_TABLE_PROVIDER, _TABLE_OPTION = "provider", "option."
_NO_OPTIONS = (
    "no option was given. Spark does not pass a table's OPTIONS to a Python source: name them in the query, "
    "SELECT … FROM t WITH ('uri' = 'zk://…', 'log' = '…') or INSERT INTO t WITH (…), or use CREATE TEMPORARY VIEW … "
    "USING bookkeeper OPTIONS (…); from Python, set option 'uri' and one of 'log', 'logsPattern', 'ledgers', 'inspect'"
)


def parsed_fields(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `SourceOptions` that options and environment set, `given` among them. Raises as `parse`."""
    options = _without_properties(options)
    if not options:
        raise ConfigurationError(_NO_OPTIONS)
    fields: dict[str, Any] = {}
    _refuse_twice(options)
    for key, value in options.items():
        if key.lower() in _SPARK_OWN:
            continue
        if key.lower().startswith(LEDGER_METADATA.lower()):
            named = fields.setdefault("ledger_metadata", {})
            named[_metadata_key(key)] = _checked(METADATA_OPTION, str(value))
            continue
        if key.lower().startswith(CLIENT_PREFIX):
            fields.setdefault("client", {})[key[len(CLIENT_PREFIX) :]] = str(value)
            continue
        option = BY_KEY.get(key.lower())
        if option is None:
            raise ConfigurationError(_unknown(key))
        if option.field in (TLS, SASL, ZOOKEEPER):
            fields.setdefault(option.field, {})[option.name] = _checked(option, str(value))
        else:
            fields[option.field] = _checked(option, str(value))
    if {"password", "passwordfile"} <= {key.lower() for key in options}:
        raise ConfigurationError("options 'password' and 'passwordFile' exclude each other: give one of them")
    if TLS in fields:
        fields[TLS] = client_tls(fields[TLS], shown="option '{}'")
    if JAAS_FILE in fields.get(SASL, {}):
        # One file for connections to bookies and to ZooKeeper.
        fields.setdefault(ZOOKEEPER, {})[JAAS_FILE] = fields[SASL][JAAS_FILE]
    if SASL in fields:
        fields[SASL] = client_sasl(fields[SASL], shown="option '{}'")
    if ZOOKEEPER in fields:
        fields[ZOOKEEPER] = zookeeper_options(fields[ZOOKEEPER], shown="option '{}'", environment=environment)
    fields["given"] = frozenset(key.lower().partition(".")[0] for key in options) - _SPARK_OWN
    _fill_from_environment(fields, environment)
    if "client" in fields or any(fields.get(name) is not None for name in (TLS, SASL, ZOOKEEPER)):
        from bkspark.spark.client_settings import client_settings  # imports the client, which few need here

        own = (fields.get(name) for name in (TLS, SASL, ZOOKEEPER))
        fields["client"] = client_settings(fields.get("client", {}), *own)
    if "uri" not in fields:
        raise ConfigurationError(f"option 'uri' is missing: set it to zk://host:port/ledgers, or set {URI_VARIABLE}")
    return fields


def _without_properties(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the OPTIONS of a CREATE TABLE without columns: Spark mixes the table's properties with them."""
    if _TABLE_PROVIDER not in options:
        return options
    return {key[len(_TABLE_OPTION) :]: value for key, value in options.items() if key.startswith(_TABLE_OPTION)}


def _refuse_twice(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError if two names differ only in case: Spark ignores case, so one of them would be lost."""
    known: dict[str, str] = {}
    for key in options:
        before = known.setdefault(key.lower(), key)
        if before != key:
            raise ConfigurationError(f"options '{before}' and '{key}' are the same, as case does not count: give one")


def _checked(option: Option, value: str) -> Any:
    try:
        return option.check(value)
    except ValueError as error:
        shown = "***" if option.name == "password" else values.shown(without_user(value))
        raise ConfigurationError(f"option '{option.name}' is {shown}, which {error} ({option.meaning})") from None


def _metadata_key(name: str) -> str:
    key = name[len(LEDGER_METADATA) :].lower()
    if not key.removeprefix(NOT):
        raise ConfigurationError(f"option '{name}' names no key: write {LEDGER_METADATA}key=value")
    try:
        return values.stored_text(key)
    except ValueError as error:
        raise ConfigurationError(f"option {values.shown(name)} has a key that {error}") from None


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return (
            "a path has no meaning here: name what to use by option 'log' or 'ledgers', and call load() or save() bare"
        )
    if (remedy := remedy_of_others(key.lower())) is not None:
        return f"unknown option '{key}': {remedy}"
    if difflib.get_close_matches(key.lower().partition(".")[0], [METADATA_OPTION.name.lower()], cutoff=0.8):
        return f"unknown option '{key}': did you mean '{LEDGER_METADATA}KEY', with a key of custom metadata?"
    from bkspark.spark.client_settings import setting_meant  # imports the client, which few need here

    if (setting := setting_meant(key)) is not None:
        return f"unknown option '{key}': did you mean '{setting}'?"
    nearest = difflib.get_close_matches(key.lower(), BY_KEY, n=1)
    if nearest:
        return f"unknown option '{key}': did you mean '{BY_KEY[nearest[0]].name}'?"
    names = ", ".join(option.name for option in OPTIONS)
    return f"unknown option '{key}': the options are {names}"


def _fill_from_environment(fields: dict[str, Any], environment: Mapping[str, str]) -> None:
    if TLS not in fields and environment.get(FILE_VARIABLE):
        fields[TLS] = read_client_file(environment[FILE_VARIABLE])
    if SASL not in fields and environment.get(FILE_VARIABLE):
        fields[SASL] = read_client_sasl(environment[FILE_VARIABLE])
    if ZOOKEEPER not in fields:
        path = environment.get(FILE_VARIABLE)
        found = read_zookeeper_file(path, environment) if path else zookeeper_options({}, environment=environment)
        if found != ZooKeeperOptions():
            fields[ZOOKEEPER] = found
    if PASSWORD not in fields:
        fields[PASSWORD] = LedgerPassword.of_environment(environment)
    if ENCRYPTION_KEYS not in fields and environment.get(ENCRYPTION_KEY_FILE_VARIABLE):
        fields[ENCRYPTION_KEYS] = environment[ENCRYPTION_KEY_FILE_VARIABLE]
    if "uri" not in fields and environment.get(URI_VARIABLE):
        fields["uri"] = _checked(BY_KEY["uri"], environment[URI_VARIABLE])
