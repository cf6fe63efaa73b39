"""Client files, which --client-config and BKSPARK_CLIENT_CONFIG name: a misspelt key must not leave a client open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.metadata.zookeeper_options import KEYS, read_zookeeper_file
from bkspark.security import client_keys as sasl
from bkspark.security.client_keys import read_client_sasl
from bkspark.tls import client_keys as tls
from bkspark.tls.client_keys import FILE_VARIABLE, read_client_file
from bookie_service.settings.keys import APACHE_KEYS, OWN_KEYS

READERS: tuple[Callable[[str], object], ...] = (read_client_file, read_client_sasl, read_zookeeper_file)
EVERY_KEY = sorted({*APACHE_KEYS, *OWN_KEYS, tls.FACTORY, *tls.FIELDS, *sasl.FIELDS, *KEYS})


@pytest.mark.parametrize(
    ("line", "read", "meant"),
    [
        (
            "tlsProviderFactoryClas=org.apache.bookkeeper.tls.TLSContextFactory",
            read_client_file,
            "tlsProviderFactoryClass",
        ),
        ("tlsproviderfactoryclass=org.apache.bookkeeper.tls.TLSContextFactory", read_client_file, tls.FACTORY),
        ("tlsEnabledProtocls=TLSv1.3", read_client_file, "tlsEnabledProtocols"),
        ("clientTrustStor=/ca.pem", read_client_file, "clientTrustStore"),
        (f"clientAuthProviderFactoryClss={sasl.PROVIDER_CLASS}", read_client_sasl, sasl.PROVIDER),
        ("zkEnableSecurty=true", read_zookeeper_file, "zkEnableSecurity"),
        ("zkenablesecurity=true", read_zookeeper_file, "zkEnableSecurity"),
        ("zookeeper.client.secur=true", read_zookeeper_file, "zookeeper.client.secure"),
    ],
)
def test_a_misspelt_key_is_an_error_that_names_the_right_one(
    tmp_path: Path, line: str, read: Callable[[str], object], meant: str
) -> None:
    file = tmp_path / "client.conf"
    file.write_text(f"zkTimeout=5\n{line}\n")
    with pytest.raises(ConfigurationError) as caught:
        read(str(file))
    assert str(caught.value) == f"{file}: the key {line.partition('=')[0]!r} does not exist; did you mean {meant}?"


def test_an_empty_variable_names_no_file() -> None:
    """docs/security.md unsets the variable like this. Commands that run the server's package read '.' as the file."""
    command = [sys.executable, "-m", "bkspark.cli", "cluster", "check", "--set", "replicationRateByBytes=x"]
    environment = {**os.environ, FILE_VARIABLE: "", "BKSPARK_URI": "zk://127.0.0.1:1/ledgers"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert "replicationRateByBytes" in found.stderr


def _refusal(read: Callable[[str], object], file: Path) -> str:
    try:
        read(str(file))
    except ConfigurationError as error:
        return str(error)
    return ""


def test_no_key_of_a_bookie_or_of_apaches_client_counts_as_misspelt(tmp_path: Path) -> None:
    """One file can serve a bookie and its clients."""
    file = tmp_path / "client.conf"
    for key in EVERY_KEY:
        file.write_text(f"{key}=a value\n")
        assert not [why for read in READERS if "did you mean" in (why := _refusal(read, file))]


def test_a_misspelt_key_without_a_value_turns_nothing_on_and_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "client.conf"
    file.write_text("zkEnableSecurty=\nclientAuthProviderFactoryClss=null\n")
    assert [read(str(file)) for read in READERS[:2]] == [None, None]
