"""The SASL login of a ZooKeeper session: the user in a section of a JAAS file, as Java's client has it.

    Client {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        username="bookkeeper"
        password="...";
    };

A section with `Krb5LoginModule` means GSSAPI, with a ticket for the server `zookeeper/HOST`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bkspark.errors import ConfigurationError
from bkspark.metadata.zookeeper_connection import NewLogin
from bkspark.metadata.zookeeper_options import DEFAULT_SECTION, JAAS_FILE, ZooKeeperOptions
from bkspark.security.mechanism import ClientExchange
from bkspark.security.sasl import SaslClient, SaslClientOptions, sections_of

DIGEST_URI = "zookeeper/zk-sasl-md5"
"""The same for all servers: ZooKeeper takes a fixed name in place of the host's."""


def login_of(options: ZooKeeperOptions) -> NewLogin | None:
    """Return the function that makes the login of each connection; None if this process does not log in.

    Raises:
        ConfigurationError: the JAAS file or the section cannot be used, or is missing where an identity is needed.
    """
    if options.jaas_file is None:
        return None
    with _naming(options):
        if _is_optional(options) and options.jaas_section not in sections_of(options.jaas_file):
            return None  # the file has only sections for connections to bookies

    def new_login(host: str) -> ClientExchange:
        # Each login reads the file: the password may have changed.
        with _naming(options):
            sasl = SaslClientOptions(jaas_config=options.jaas_file, section=options.jaas_section)
            return SaslClient(sasl, options.service, DIGEST_URI).begin(host)

    new_login("localhost")  # raise now if the file or the section cannot be used
    return new_login


def _is_optional(options: ZooKeeperOptions) -> bool:
    """Return whether the file may lack the section."""
    shows_certificate = options.tls is not None and options.tls.client_authentication
    return options.jaas_section == DEFAULT_SECTION and (shows_certificate or not options.closes_nodes)


@contextlib.contextmanager
def _naming(options: ZooKeeperOptions) -> Iterator[None]:
    """Make errors name the key of the file."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{JAAS_FILE}={options.jaas_file}: {error}") from None
