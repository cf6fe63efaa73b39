"""The LAYOUT node: which ledger manager a cluster uses.

Text, no newline at the end: `<layout format version>LF<factory class>:<manager version>`. Format 2 is written; format
1, with a short name in the class's place, is read. Clusters that only Pulsar initialised have no LAYOUT: they use the
hierarchical manager.
"""

from __future__ import annotations

from bkspark.errors import MetadataFormat
from bkspark.metadata.uri import LedgerManager

_MANAGER_VERSION = 1
_BY_NAME = {manager.factory: manager for manager in LedgerManager} | {
    manager.value: manager for manager in LedgerManager
}


def encode(manager: LedgerManager) -> bytes:
    """Return the node's bytes."""
    return f"2\n{manager.factory}:{_MANAGER_VERSION}".encode()


def decode(data: bytes) -> LedgerManager:
    """Return the ledger manager that a LAYOUT node names.

    Raises:
        MetadataFormat: damaged, or a manager that is not known.
    """
    try:
        version, _, rest = data.decode().partition("\n")
        name, _, manager_version = rest.strip().partition(":")
    except UnicodeDecodeError:
        raise MetadataFormat(f"the LAYOUT node is not text: {data[:40]!r}") from None
    if version not in ("1", "2") or name not in _BY_NAME or manager_version != str(_MANAGER_VERSION):
        raise MetadataFormat(f"the LAYOUT node names no ledger manager that is known here: {data[:120]!r}")
    return _BY_NAME[name]
