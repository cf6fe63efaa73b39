"""What the full tier sees of one ledger on disks and in the metadata store, at the moments that count.

A copy counts as durable when a crash now would leave its bytes; a fence when the journal's record of it is synced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import DigestMismatch
from bkspark.metadata import encoding
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.paths import parse_ledger_path
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import EntryDigest
from bkspark.wire.status import Status
from tests.simulation.full_cluster import URI, Cluster, FullBookie
from tests.simulation.full_links import WHO
from tests.simulation.history import Audit, Copies, LedgerHistory

_ROOT = MetadataUri.parse(URI).root


class LedgerAudits:
    """Audits of one ledger; they go into its history."""

    def __init__(self, cluster: Cluster, ledger: LedgerHistory, now: Callable[[], int]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._now = now
        self._ledger_id = -1

    def begin(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """The ledger was created."""
        self._ledger_id = ledger_id
        self._ledger.changes.append((self._now(), Versioned(metadata, 0, 0, 0), "owner"))

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as they are stored now."""
        return self._ledger.changes[-1][1].metadata

    # ---- when it happens ----

    def on_metadata(self, path: str, before: bytes, after: bytes, version: int) -> None:
        """A node has other data now."""
        ledger_id = parse_ledger_path(path.removeprefix(f"{_ROOT}/"))
        if ledger_id is None or ledger_id != self._ledger_id:
            return
        old, new, who = self.metadata, encoding.decode(after, ledger_id), WHO.get()
        self._ledger.changes.append((self._now(), Versioned(new, version, 0, 0), who))
        if not new.is_closed:
            return
        copies = [self._durable_copies(new, entry_id) for entry_id in range(new.last_entry + 1)]
        audit = Audit(self._now(), f"when {who} closed it", new.last_entry, new.ack_quorum, copies)
        if who != "owner":
            bookies = [self._cluster.bookie(name) for name in old.last_fragment.bookies]
            audit.fenced = tuple(bookie.is_fenced_durably(ledger_id) for bookie in bookies)
            audit.write_quorum = old.write_quorum
        self._ledger.audits.append(audit)

    def acknowledged(self, entry_ids: Collection[int]) -> None:
        """These entries were acknowledged just now."""
        metadata = self.metadata
        for entry_id in entry_ids:
            copies = self._durable_copies(metadata, entry_id)
            self._ledger.copies_at_ack.append((entry_id, metadata.ack_quorum, copies))

    def _durable_copies(self, metadata: LedgerMetadata, entry_id: int) -> Copies:
        payload = self._ledger.invoked[entry_id][0] if entry_id in self._ledger.invoked else b""
        copies = Copies(0)
        for bookie in self._named(metadata, entry_id):
            if (self._ledger_id, entry_id) in bookie.damaged:
                copies.damaged += 1
            elif bookie.holds_durably(self._ledger_id, entry_id, payload):
                copies.valid += 1
                copies.payloads |= {payload}
        return copies

    def _named(self, metadata: LedgerMetadata, entry_id: int) -> list[FullBookie]:
        bookies = metadata.fragment_of(entry_id).bookies
        slots = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        return [self._cluster.bookie(bookies[slot]) for slot in slots]

    # ---- damage ----

    def damage_an_entry(self, bookie: FullBookie) -> None:
        """Damage one entry on one disk, if the quorums can spare a copy and none was damaged yet."""
        if self.metadata.ack_quorum < 2 or any(other.damaged for other in self._cluster.bookies):
            return
        held = [it for it in self._ledger.invoked if bookie.id in [one.id for one in self._named(self.metadata, it)]]
        for entry_id in self._cluster.random.sample(held, len(held)):
            if bookie.damage(self._ledger_id, entry_id):
                return

    # ---- in the end ----

    def in_the_end(self, metadata: LedgerMetadata) -> None:
        """Look at every copy; what was sent has arrived, and is durable."""
        digest = EntryDigest(metadata.digest, b"")
        length = 0
        audits = []
        for entry_id in range(metadata.last_entry + 1):
            length += len(self._ledger.invoked[entry_id][0]) if entry_id in self._ledger.invoked else 0
            audits.append(self._held_copies(metadata, digest, entry_id, length))
        self._ledger.audits.append(Audit(self._now(), "in the end", metadata.last_entry, metadata.ack_quorum, audits))

    def _held_copies(self, metadata: LedgerMetadata, digest: EntryDigest, entry_id: int, length: int) -> Copies:
        copies = Copies(0)
        missing = []
        for bookie in self._named(metadata, entry_id):
            assert bookie.twin is not None
            status, _, content = bookie.twin.read(self._ledger_id, entry_id)
            if status in (Status.ENOENTRY, Status.ENOLEDGER):
                missing.append(bookie.id)
                continue
            try:
                entry = digest.open_entry(content, self._ledger_id, entry_id)
            except DigestMismatch:
                copies.damaged += 1
                continue
            copies.valid += 1
            copies.payloads |= {bytes(entry.payload)}
            if entry.length != length:
                self._ledger.wrong_lengths.append((bookie.id, entry_id, entry.length))
        copies.missing = tuple(missing)
        return copies
