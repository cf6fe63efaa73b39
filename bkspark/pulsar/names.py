"""Names of Pulsar's topics, and the paths of their metadata. PURE.

    topic              persistent://tenant/namespace/local, short forms `local` and `tenant/namespace/local`
    legacy (V1)        persistent://tenant/cluster/namespace/local
    partition N        the topic whose local name ends in -partition-N
    managed ledger     tenant/namespace/persistent/ENC(local)
    schema             tenant/namespace/ENC(local without -partition-N)

ENC is Java's URLEncoder with UTF-8: letters, digits and `.-*_` are kept, a space is `+`, all else is %XX.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace

from bkspark.errors import ConfigurationError

PERSISTENT = "persistent"
MANAGED_LEDGERS = "/managed-ledgers"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
SCHEMAS = "/schemas"
POLICIES = "/admin/policies"

_KEPT = {ord(each): each for each in f"{string.ascii_letters}{string.digits}.-*_"} | {ord(" "): "+"}
_CODED = re.compile(rb"%([0-9A-Fa-f]{2})")
_NO_PARTS = ("", ".", "..")
"""Parts of a name that cannot be nodes of ZooKeeper."""
_PARTITION = re.compile(r"(?<=[\s\S])-partition-(\d{1,9})\Z")
_NAMESPACE_PART = re.compile(r"[-=:.\w]+\Z", re.ASCII)
_SYSTEM_LOCALS = frozenset(
    [
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    ]
)
_SYSTEM_NAMESPACE = ("pulsar", "system")
TRANSACTION_SNAPSHOTS = ("__transaction_buffer_snapshot", "__transaction_buffer_snapshot_indexes")
"""A namespace has one of these topics if its topics may have transactions."""


def encoded(name: str) -> str:
    """Return ENC(name)."""
    return "".join(_KEPT.get(octet, f"%{octet:02X}") for octet in name.encode())


def decoded(name: str) -> str:
    """Return the name whose ENC this is."""
    octets = name.replace("+", " ").encode("utf-8", "surrogatepass")
    return _CODED.sub(lambda found: bytes([int(found[1], 16)]), octets).decode("utf-8", "replace")


@dataclass(frozen=True, order=True)
class TopicName:
    """One topic, partitioned or not, or one partition. `cluster` is that of a legacy name, otherwise None."""

    tenant: str
    """The name is `tenant/namespace/local`, as in "public/default/clicks"."""
    namespace: str
    local: str
    """With "-partition-N" at its end, it is one partition."""
    cluster: str | None = None

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Return the topic that a short or full name means.

        Raises:
            ConfigurationError: it is not the name of a topic, or the name of a topic that is not stored.
        """
        domain, separator, rest = text.partition("://")
        if not separator:
            parts = text.split("/")
            if len(parts) == 1:
                parts = ["public", "default", *parts]
            if len(parts) != 3:
                raise ConfigurationError(
                    f"topic {text!r} is neither NAME, tenant/namespace/NAME nor persistent://tenant/namespace/NAME"
                )
        else:
            if domain == "non-persistent":
                raise ConfigurationError(f"topic {text!r} is non-persistent: Pulsar never stores its messages")
            if domain != PERSISTENT:
                raise ConfigurationError(f"topic {text!r} must begin with persistent://")
            parts = rest.split("/", 3)
            if len(parts) < 3:
                raise ConfigurationError(f"topic {text!r} is not persistent://tenant/namespace/NAME")
        local = parts.pop()
        # Its parts are paths of the metadata store: nothing may lead out of them.
        if local in _NO_PARTS or not all(_NAMESPACE_PART.match(part) and part not in _NO_PARTS for part in parts):
            raise ConfigurationError(f"topic {text!r} has an empty or impossible part: give tenant/namespace/NAME")
        cluster = parts.pop(1) if len(parts) == 3 else None
        return cls(parts[0], parts[1], local, cluster)

    @classmethod
    def of_managed_ledger(cls, name: str) -> TopicName | None:
        """Return the topic whose managed ledger has this name; None if it does not belong to a topic."""
        parts = name.split("/")
        if len(parts) not in (4, 5) or parts[-2] != PERSISTENT:
            return None
        return cls(parts[0], parts[-3], decoded(parts[-1]), parts[1] if len(parts) == 5 else None)

    def __str__(self) -> str:
        return f"{PERSISTENT}://{self.namespace_path}/{self.local}"

    @property
    def namespace_path(self) -> str:
        parts = (self.tenant, self.cluster, self.namespace)
        return "/".join(part for part in parts if part is not None)

    @property
    def partition(self) -> int:
        """The number of the partition that the name means; -1 if it does not mean a partition."""
        found = _PARTITION.search(self.local)
        return int(found[1]) if found and found[1] == str(int(found[1])) else -1

    def of_partition(self, partition: int) -> TopicName:
        return replace(self, local=f"{self.local}-partition-{partition}")

    @property
    def whole(self) -> TopicName:
        """The partitioned topic of a partition; the topic itself if it is not a partition."""
        return self if self.partition < 0 else replace(self, local=_PARTITION.sub("", self.local))

    @property
    def is_system(self) -> bool:
        """Whether it is one of Pulsar's own system topics."""
        if (self.tenant, self.namespace) == _SYSTEM_NAMESPACE:
            return True
        whole = self.whole.local
        return whole in _SYSTEM_LOCALS or whole.endswith("__transaction_pending_ack")

    def matches(self, pattern: str) -> bool:
        """Return whether a regular expression is for the topic: for its local name, or in an alternative that begins
        with the namespace again, as in `tenant/ns/a|tenant/ns/b`, for its whole name."""
        names = [self.local]
        if f"{self.namespace_path}/" in pattern:
            names += [f"{self.namespace_path}/{self.local}", str(self)]
        return any(re.fullmatch(pattern, name) for name in names)

    @property
    def managed_ledger(self) -> str:
        return f"{self.namespace_path}/{PERSISTENT}/{encoded(self.local)}"

    @property
    def managed_ledger_path(self) -> str:
        return f"{MANAGED_LEDGERS}/{self.managed_ledger}"

    @property
    def partitions_path(self) -> str:
        """The path of the node with the topic's number of partitions."""
        return f"{PARTITIONED_TOPICS}/{self.managed_ledger}"

    @property
    def schema_id(self) -> str:
        """The name without the domain, and without the cluster of a legacy name."""
        return f"{self.tenant}/{self.namespace}/{encoded(self.whole.local)}"

    @property
    def schema_path(self) -> str:
        return f"{SCHEMAS}/{self.schema_id}"
