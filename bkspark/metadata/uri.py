"""Metadata URIs: Apache's form of "which ZooKeeper, which root, which ledger manager".

zk://host:2181;host2:2181/ledgers   the ledger manager that the LAYOUT node names, hierarchical if there is none
zk+null://...                       the same
zk+hierarchical://... zk+flat://... zk+longhierarchical://... zk+legacyhierarchical://...   that ledger manager
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from bkspark.errors import ConfigurationError
from bkspark.ids import parse_host_port

PORT = 2181
_EXAMPLE = "zk://127.0.0.1:2181/ledgers"
_NO_USER = "it must not have a user or a password: remove what is before @, and name a JAAS file by saslJaasConfig"


def without_user(text: str) -> str:
    """Return a text with a URI as messages show it: without what comes before an @, which may be a password."""
    return re.sub(r"://.*@", "://***@", text, flags=re.DOTALL)


class LedgerManager(enum.Enum):
    """How ledger ids become paths; the value is Apache's short name, as URIs and old LAYOUT nodes have it."""

    HIERARCHICAL = "hierarchical"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    LONG_HIERARCHICAL = "longhierarchical"
    FLAT = "flat"

    @property
    def factory(self) -> str:
        """The class name that LAYOUT nodes contain."""
        name = "".join(word.capitalize() for word in self.name.split("_"))
        return f"org.apache.bookkeeper.meta.{name}LedgerManagerFactory"


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """A parsed metadata URI. `manager` None: the one in LAYOUT."""

    hosts: tuple[tuple[str, int], ...]
    """(host, port) of each server, in order."""
    root: str
    """The node below which everything of the cluster is, such as "/ledgers"."""
    manager: LedgerManager | None

    @classmethod
    def parse(cls, text: str) -> MetadataUri:
        """Return the parts of a URI.

        Raises:
            ConfigurationError: it is not a metadata URI; the message names the wrong part.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f"metadata URI must be text, as {_EXAMPLE}, not {text!r:.80}")
        shown = without_user(text)
        scheme, separator, rest = text.partition("://")
        authority, slash, path = rest.partition("/")
        store, _, manager_name = scheme.lower().partition("+")
        if not separator or store != "zk":
            raise ConfigurationError(f"metadata URI {shown!r} must begin with zk://, as in {_EXAMPLE}")
        managers = {manager.value: manager for manager in LedgerManager} | {"": None, "null": None}
        if manager_name not in managers:
            known = ", ".join(sorted(name for name in managers if name))
            raise ConfigurationError(f"metadata URI {shown!r}: ledger manager {manager_name!r} is not one of {known}")
        if not authority:
            raise ConfigurationError(f"metadata URI {shown!r} names no host, as {_EXAMPLE} does")
        hosts = []
        for host in authority.replace(",", ";").split(";"):
            try:
                if "@" in host:
                    raise ValueError
                hosts.append(parse_host_port(host if ":" in host else f"{host}:{PORT}"))
            except ValueError as error:
                why = error if shown == text else _NO_USER
                raise ConfigurationError(f"metadata URI {shown!r}: {why}") from None
        root = "/" + path.strip("/")
        if not slash or {"", ".", ".."} & set(root.split("/")[1:]):
            raise ConfigurationError(f"metadata URI {shown!r} names no root path, as {_EXAMPLE} does")
        return cls(tuple(hosts), root, managers[manager_name])

    @property
    def connect_string(self) -> str:
        """The hosts as ZooKeeper clients write them."""
        return ",".join(f"{_bracketed(host)}:{port}" for host, port in self.hosts)

    def __str__(self) -> str:
        scheme = "zk" if self.manager is None else f"zk+{self.manager.value}"
        return f"{scheme}://{self.connect_string.replace(',', ';')}{self.root}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
