"""Every exception bkspark raises for a reason outside its own code.

    BookKeeperError
      ConfigurationError            an option, key or URI is wrong: name, value, remedy
      ProtocolError                 a peer sent bytes that are not the protocol
      MetadataError                 the metadata store failed or is away
        MetadataVersion             a compare-and-set lost against somebody else's write
        MetadataFormat              stored metadata cannot be decoded
        NoSuchNode / NodeExists     a path is missing / taken
        SessionExpired              our ephemeral nodes and authority are gone
      NoSuchLedger                  no such ledger in the metadata store
      DuplicateEntryId              the caller gave an entry id twice
      LedgerExists                  the chosen ledger id is taken
      NoSuchLog / LogExists         the same for named logs
      LedgerClosed                  the handle or ledger takes no more entries
      LedgerFenced                  somebody recovers the ledger; outcome of pending adds is unknown
      LedgerRecoveryFailed          not enough bookies answered; the ledger stays IN_RECOVERY
      UnauthorizedAccess            wrong ledger password
      DigestMismatch                bytes of an entry fail their check
      NoSuchEntry                   certainly absent
      NotEnoughBookies              fewer usable bookies than the ensemble needs
      BookieUnavailable             one bookie cannot be reached or answered with an error
      TooManyRequests               one bookie, or the client, takes no more for now
      RequestTimeout                no answer in time; the outcome is unknown
      ReadFailed / WriteFailed      every replica failed / the add cannot complete
      DataLoss                      data that a position names is gone (failOnDataLoss)
      MalformedPayload              an entry is intact, but does not hold what its format or schema demands
      ClientClosed                  the client was closed under the call
      StorageDamaged                a bookie's stored bytes fail their checks: file, offset, remedy
      DiskFull                      a bookie's disks are full, and it is told not to go on read-only

Each carries the facts it knows (`ledger_id`, `entry_id`, `bookie`) and Apache's BKException `code`.
"""

from __future__ import annotations


class BookKeeperError(Exception):
    """Base of all. `code` is Apache's BKException code; facts not known are None."""

    code = -999

    def __init__(
        self,
        message: str,
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(message)
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie = bookie

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries task errors between processes; keyword-only facts need help to survive a pickle.
        return (_rebuild, (type(self), self.args[0], self.ledger_id, self.entry_id, self.bookie))


def _rebuild(
    kind: type[BookKeeperError], message: str, ledger_id: int | None, entry_id: int | None, bookie: str | None
) -> BookKeeperError:
    return kind(message, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


class ConfigurationError(BookKeeperError):
    """An option, configuration key or URI is wrong; the message names it, its value and the remedy."""

    code = -14


class ProtocolError(BookKeeperError):
    """A peer sent bytes that are not the protocol; the connection is of no further use."""

    code = -16


class MetadataError(BookKeeperError):
    """The metadata store failed or cannot be reached."""

    code = -9


class MetadataVersion(MetadataError):
    """A compare-and-set lost: the stored version is not the expected one."""

    code = -17


class MetadataFormat(MetadataError):
    """Stored metadata cannot be decoded, or breaks a rule of its format."""

    code = -107


class NoSuchNode(MetadataError):
    """A path in the metadata store does not exist."""


class NodeExists(MetadataError):
    """A path in the metadata store exists already."""


class SessionExpired(MetadataError):
    """The metadata session ended: ephemeral nodes are gone and cached authority is void."""


class NoSuchLedger(BookKeeperError):
    """The ledger is not in the metadata store (deleted, or never created)."""

    code = -25


class DuplicateEntryId(BookKeeperError):
    """The caller chose an entry id that was added before; that entry stands, this one was not added."""

    code = -22


class LedgerExists(BookKeeperError):
    """The ledger id chosen by the caller is taken."""

    code = -20


class NoSuchLog(BookKeeperError):
    """No log of that name."""

    code = -25


class LogExists(BookKeeperError):
    """A log of that name exists already."""

    code = -20


class LedgerClosed(BookKeeperError):
    """The ledger, or this handle of it, takes no more entries."""

    code = -11


class LedgerFenced(BookKeeperError):
    """Somebody recovers the ledger. Adds still pending may or may not be stored: outcome unknown."""

    code = -101


class LedgerRecoveryFailed(BookKeeperError):
    """Too few bookies answered to decide where the ledger ends; it stays IN_RECOVERY and can be retried."""

    code = -10


class UnauthorizedAccess(BookKeeperError):
    """The password does not open this ledger."""

    code = -102


class DigestMismatch(BookKeeperError):
    """An entry's bytes do not match their digest or their ids."""

    code = -5


class NoSuchEntry(BookKeeperError):
    """The entry is certainly not there."""

    code = -13


class NotEnoughBookies(BookKeeperError):
    """Fewer usable bookies than the ensemble needs."""

    code = -6


class BookieUnavailable(BookKeeperError):
    """One bookie cannot be reached, dropped the connection, or answered with an error of its own."""

    code = -8


class TooManyRequests(BookKeeperError):
    """One bookie, or the client itself, takes no more for now; what was asked for had no effect."""

    code = -105


class RequestTimeout(BookKeeperError):
    """No answer in time; whether the request took effect is unknown."""

    code = -23


class ReadFailed(BookKeeperError):
    """Every replica that may hold the entry failed; that the entry is absent is not certain."""

    code = -1


class WriteFailed(BookKeeperError):
    """The add cannot complete; it may or may not be stored."""

    code = -12


class DataLoss(BookKeeperError):
    """Data that a stored position names no longer exists."""

    code = -13


class MalformedPayload(BookKeeperError):
    """An entry is intact, but its payload does not hold what the format or the schema demands."""

    code = -999


class ClientClosed(BookKeeperError):
    """The client was closed while the call was under way."""

    code = -19


class StorageDamaged(BookKeeperError):
    """Stored bytes of a bookie fail their checks where acknowledged data may lie; the message names file and offset."""


class DiskFull(BookKeeperError):
    """A bookie's disks are full, and it is configured to end rather than to go on read-only."""
