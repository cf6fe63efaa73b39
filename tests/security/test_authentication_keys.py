"""The keys of authentication: Apache's class names, what they need, and what is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.errors import ConfigurationError
from bkspark.security.client_keys import client_sasl, parse, read_client_sasl
from bkspark.security.sasl import SaslClientOptions, SaslServerOptions
from bookie_service.network.authentication import ListenerAuthenticationOptions
from bookie_service.settings.authentication import KEY, ROLES_CLASS, SASL_CLASS
from bookie_service.settings.configuration import Configuration, configure

CLIENT, CLIENT_CLASS = "clientAuthProviderFactoryClass", "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
TLS = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsClientAuthentication": "true"}


def configured(**keys: str) -> Configuration:
    return configure(keys)


def authentication(**keys: str) -> ListenerAuthenticationOptions | None:
    return configured(**keys).service.authentication


def test_without_keys_there_is_no_authentication_as_in_apaches_bookies() -> None:
    assert authentication() is None
    assert authentication(**{KEY: ""}) is None
    assert authentication(**{KEY: "null"}) is None
    assert configured().auto_recovery.sasl is None


def test_apaches_keys_of_sasl() -> None:
    assert authentication(**{KEY: SASL_CLASS}) == ListenerAuthenticationOptions(SaslServerOptions())
    assert authentication(
        **{KEY: SASL_CLASS},
        saslJaasConfig="/etc/jaas",
        saslJaasBookieSectionName="Server",
        saslJaasClientAllowedIds="a|b",
        authenticationRequired="true",
        authenticationTimeoutMs="2000",
        maxUnauthenticatedConnections="20",
        maxUnauthenticatedConnectionsPerAddress="5",
    ) == ListenerAuthenticationOptions(
        SaslServerOptions("/etc/jaas", "Server", "a|b"),
        required=True,
        timeout_s=2.0,
        waiting_max=20,
        waiting_per_address_max=5,
    )


def test_apaches_keys_of_roles() -> None:
    found = authentication(**{KEY: ROLES_CLASS}, authorizedRoles="writer, admin", **TLS)
    assert found == ListenerAuthenticationOptions(roles=("writer", "admin"))
    assert authentication(authenticationRequired="true", **TLS) == ListenerAuthenticationOptions(required=True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({KEY: "com.example.Auth"}, f"{KEY}=com.example.Auth: it must be {SASL_CLASS} or {ROLES_CLASS}"),
        ({KEY: "true"}, f"{KEY}=true: it must be"),
        ({KEY: ROLES_CLASS, **TLS}, "it needs authorizedRoles"),
        ({KEY: ROLES_CLASS, "authorizedRoles": "a"}, "it needs TLS with tlsClientAuthentication=true"),
        ({"authorizedRoles": "a"}, f"authorizedRoles=a: there are no roles without {KEY}={ROLES_CLASS}"),
        ({KEY: SASL_CLASS, "authorizedRoles": "a"}, "there are no roles without"),
        ({"authenticationRequired": "true"}, "authenticationRequired=true: nothing authenticates clients"),
        ({KEY: SASL_CLASS, "saslJaasClientAllowedIds": "("}, "saslJaasClientAllowedIds=(: it must be a regular"),
        ({KEY: SASL_CLASS, "authenticationRequired": "perhaps"}, "authenticationRequired=perhaps"),
        ({CLIENT: "com.example.Auth"}, f"{CLIENT}=com.example.Auth: it must be {CLIENT_CLASS}"),
        ({"saslJaasClientAllowedId": "a"}, "did you mean saslJaasClientAllowedIds?"),
    ],
)
def test_what_cannot_protect_is_refused_at_the_start(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(keys)
    assert message in str(caught.value)


def test_autorecovery_authenticates_as_a_client_with_the_role_system() -> None:
    found = configured(**{CLIENT: CLIENT_CLASS}, saslJaasConfig="/j").auto_recovery.sasl
    assert found == SaslClientOptions("/j", "Auditor")
    found = configured(**{CLIENT: CLIENT_CLASS}, saslJaasAuditorSectionName="X").auto_recovery.sasl
    assert found == SaslClientOptions(None, "X")


def test_autorecovery_that_its_own_bookies_would_refuse_is_noted() -> None:
    keys = {KEY: SASL_CLASS, "autoRecoveryDaemonEnabled": "true"}
    assert any("autorecovery does not authenticate" in note for note in configure(keys).notes)
    assert not any("autorecovery" in note for note in configure({**keys, CLIENT: CLIENT_CLASS}).notes)


# ---- a client's keys ----


def of_client(**texts: str) -> SaslClientOptions | None:
    return client_sasl({key: parse(key, text) for key, text in texts.items()})


def test_apaches_keys_of_a_client() -> None:
    assert of_client() is None
    assert of_client(saslJaasConfig="/j") is None, "connections to ZooKeeper use it, too"
    assert of_client(**{CLIENT: CLIENT_CLASS}) == SaslClientOptions()
    assert of_client(**{CLIENT: CLIENT_CLASS}, saslJaasConfig="/j", saslJaasClientSectionName="S") == (
        SaslClientOptions("/j", "S")
    )
    assert of_client(**{CLIENT: CLIENT_CLASS}, clientRole="system") == SaslClientOptions(None, "Auditor")
    assert of_client(**{CLIENT: CLIENT_CLASS}, allowAuthDisabled="true") == SaslClientOptions(allow_auth_disabled=True)


def test_key_of_a_client_without_the_one_that_turns_sasl_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="saslJaasClientSectionName has no effect without"):
        of_client(saslJaasClientSectionName="S")
    file = tmp_path / "client.conf"
    file.write_text(f"{CLIENT}=other\n")
    with pytest.raises(ConfigurationError, match=f"{CLIENT}=other: it must be {CLIENT_CLASS}"):
        read_client_sasl(str(file))
    file.write_text(f"tlsTrustStore=x\n{CLIENT}={CLIENT_CLASS}\nclientRole=king\n")
    with pytest.raises(ConfigurationError, match="clientRole=king: it must be one of standard, system"):
        read_client_sasl(str(file))
    file.write_text(f"zkTimeout=5\n{CLIENT}={CLIENT_CLASS}\nsaslJaasConfig=/j\n")
    assert read_client_sasl(str(file)) == SaslClientOptions("/j")
