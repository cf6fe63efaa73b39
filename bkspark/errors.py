"""Every exception bkspark raises for a reason outside its own code.

    BookKeeperError
      ConfigurationError            an option, key or URI is wrong: name, value, remedy
        SchemaMismatch              rows, or a read, contradict the format or columns that a log has
      ProtocolError                 a peer sent bytes that do not follow the protocol
      MetadataError                 the metadata store failed or cannot be reached
        MetadataVersion             a compare-and-set lost against another write
        MetadataFormat              stored metadata cannot be decoded
        NoSuchNode / NodeExists     a path is missing / taken
        SessionExpired              our ephemeral nodes and authority are gone
        MetadataAccessDenied        the metadata store refuses this client, or cannot be trusted
      NoSuchLedger                  no such ledger in the metadata store
      DuplicateEntryId              the caller gave an entry id twice
      LedgerExists                  the chosen ledger id is taken
      NoSuchLog / LogExists         the same for named logs
      VersionPublished              another query published this version of a name in a log
      LedgerClosed                  the handle or ledger takes no more entries
      LedgerFenced                  another client recovers the ledger; outcome of pending adds is unknown
      LedgerRecoveryFailed          not enough bookies answered; the ledger stays IN_RECOVERY
      UnauthorizedAccess            wrong ledger password
      DigestMismatch                bytes of an entry fail their check
      DecryptionFailed              the key of an encrypted ledger is missing or wrong, or an entry was altered
      NoSuchEntry                   certainly absent
      NotEnoughBookies              fewer usable bookies than the ensemble needs
      BookieUnavailable             one bookie cannot be reached or answered with an error
        TlsFailed                   TLS with it failed: no TLS there, certificate, host name, or time
        AuthenticationFailed        authentication with it failed: user, password, ticket, settings, or time
      TooManyRequests               one bookie, or the client, takes no more for now
      RequestTimeout                no answer in time; the outcome is unknown
      ReadFailed                    every replica failed
      DataLoss                      data that a position names is gone (failOnDataLoss)
      MalformedPayload              an entry is intact, but does not hold what its format or schema demands
      ClientClosed                  the client was closed under the call
      StorageDamaged                a bookie's stored bytes fail their checks: file, offset, remedy
      DiskFull                      a bookie's disks are full, and it is configured to end then

Each carries the facts it knows (`ledger_id`, `entry_id`, `bookie`) and Apache's BKException `code`; `entry_id` of an
error that ends a writer is the first entry whose outcome is unknown. docs/errors.md shows them all.
"""

from __future__ import annotations

from typing import Any


class BookKeeperError(Exception):
    """The base class of all errors. `code` is Apache's BKException code. Facts (ledger, entry, bookie) that are not
    known are None."""

    code = -999
    remedy = "report it: this is a defect of bkspark"
    """What the caller or the operator can do about it."""

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

    def explain(self, cause: BookKeeperError) -> None:
        """Append to the message what caused the error, for callers that only see this one."""
        self.args = (f"{self.args[0]}; {cause}",)

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
    remedy = "correct the argument, option, key or URI that the message names"


class SchemaMismatch(ConfigurationError):
    """Rows to write, or columns to read, contradict the payload format or the columns that a log has."""

    remedy = "write rows that fit, allow the change (mergeSchema, overwriteSchema), or load again for the new columns"


class ProtocolError(BookKeeperError):
    """A peer sent bytes that do not follow the protocol; the connection cannot be used any more."""

    code = -16
    remedy = (
        "check that the address is that of a bookie (or client) with a supported version; bkspark has closed the "
        "connection"
    )


class MetadataError(BookKeeperError):
    """The metadata store failed or cannot be reached. `node`: if a transaction failed, the path of the operation that
    failed."""

    is_outage = True
    """Whether a later try may succeed. It may be unknown whether this one took effect. False: the store refused it,
    and nothing was changed."""
    node: str | None = None
    code = -9
    remedy = "check that ZooKeeper is up and that the metadata URI names it; then try again"

    @classmethod
    def answer(cls, message: str) -> MetadataError:
        """Return an error with `is_outage` False: the store refused, so waiting for it does not help."""
        error = cls(message)
        error.is_outage = False
        return error


class MetadataVersion(MetadataError):
    """A compare-and-set lost: the stored version is not the expected one."""

    is_outage = False
    code = -17
    remedy = "read again and decide again: another process was faster"


class MetadataFormat(MetadataError):
    """Stored metadata cannot be decoded, or breaks a rule of its format."""

    is_outage = False
    code = -107
    remedy = "look at the node that the message names: a newer version wrote it, or it is damaged. It was not changed"


class NoSuchBookie(MetadataError):
    """The cluster has no such bookie: it has no cookie, is not registered, and no ledger names it."""

    is_outage = False
    code = -8
    remedy = "check the id: `bkspark cluster bookies` lists all"


class NoSuchNode(MetadataError):
    """A path in the metadata store does not exist."""

    is_outage = False
    remedy = "check the path in the metadata URI"


class NodeExists(MetadataError):
    """A path in the metadata store exists already."""

    is_outage = False
    remedy = "choose another name, or wait until the session that owns the node has ended"


class SessionExpired(MetadataError):
    """The metadata session ended. The locks and registrations that this client held in it are gone."""

    remedy = "try again: the client begins a new session by itself"


class MetadataAccessDenied(MetadataError):
    """The metadata store refuses this client: its login failed, or an access control list does not name it.

    It is also raised when the client refuses the store, because the store's certificate is not trusted.
    """

    is_outage = False
    remedy = (
        "compare who this client is (saslJaasConfig, zookeeper.ssl.keyStore.location) with who may use the node: "
        "`bkspark cluster acl check` shows that"
    )


class NoSuchLedger(BookKeeperError):
    """The ledger is not in the metadata store (deleted, or never created)."""

    is_replaced = False
    """Whether another ledger was created with its id."""
    code = -25
    remedy = "check the id; the ledger was deleted, or never created"


class DuplicateEntryId(BookKeeperError):
    """The caller chose an entry id that was added before; that entry is kept, this one was not added."""

    code = -22
    remedy = "nothing to do: the entry of the first call is kept"


class LedgerExists(BookKeeperError):
    """The ledger id that the caller chose is taken."""

    code = -20
    remedy = "choose another id, or let one be generated"


class NoSuchLog(BookKeeperError):
    """There is no log of that name."""

    code = -25
    remedy = "check the name, or create the log"


class LogExists(BookKeeperError):
    """A log of that name exists already."""

    code = -20
    remedy = "choose another name, or use the existing log"


class VersionPublished(BookKeeperError):
    """Another query or job has already published this version under this name. This write was not published.

    `last_version` is the name's last version.
    """

    code = -20
    remedy = "publish under another name, or a version that is above the last one"

    def __init__(self, message: str, *, last_version: int | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.last_version = last_version

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"last_version": self.last_version})


class LedgerClosed(BookKeeperError):
    """The ledger, or this handle of it, takes no more entries."""

    code = -11
    remedy = "create another ledger; read this one to learn which pending entries it has"


class LedgerFenced(BookKeeperError):
    """Another client recovers the ledger. Pending adds may or may not be stored: their outcome is unknown."""

    code = -101
    remedy = (
        "stop writing: another process owns the data now. Read the closed ledger to learn which pending entries it has"
    )


class LedgerRecoveryFailed(BookKeeperError):
    """Too few bookies answered to decide where the ledger ends; it stays IN_RECOVERY and can be retried."""

    code = -10
    remedy = "bring bookies back and recover again; nothing was decided"


class UnauthorizedAccess(BookKeeperError):
    """The password does not open this ledger."""

    code = -102
    remedy = "give the password that the ledger was created with"


class DigestMismatch(BookKeeperError):
    """An entry's bytes do not match their digest or their ids."""

    code = -5
    remedy = "nothing to do if another replica was read; otherwise every copy is damaged: restore a bookie's disk"


class DecryptionFailed(BookKeeperError):
    """An entry of an encrypted ledger cannot be decrypted: the key is missing or wrong, or the entry was altered."""

    code = -24
    remedy = "give the key file that has the key which the message names"


class NoSuchEntry(BookKeeperError):
    """The entry is certainly not there."""

    code = -13
    remedy = "read up to the last entry only"


class NotEnoughBookies(BookKeeperError):
    """There are fewer usable bookies than the ensemble needs."""

    code = -6
    remedy = "start bookies, or ask for a smaller ensemble; read the ledger to learn which pending entries it has"


class BookieUnavailable(BookKeeperError):
    """One bookie cannot be reached, dropped the connection, or answered with an error of its own."""

    code = -8
    remedy = "start the bookie, or correct its registered address; others are asked meanwhile"


class TlsFailed(BookieUnavailable):
    """TLS with one bookie failed; no request was sent to it, and none is sent in clear."""

    code = -24
    remedy = (
        "compare the TLS settings of both sides: whether the bookie has TLS, the trust stores, the names and dates in "
        "the certificates; the message says what failed"
    )


class AuthenticationFailed(BookieUnavailable):
    """Authentication with one bookie failed; no request was sent to it."""

    code = -102
    remedy = (
        "compare both sides: the sections of their JAAS files, the user and its password or ticket, and "
        "saslJaasClientAllowedIds of the bookie; the bookie's log says why it refuses a client"
    )


class TooManyRequests(BookKeeperError):
    """One bookie, or the client itself, accepts no more requests for now; the refused request had no effect."""

    code = -105
    remedy = "wait, and send fewer requests at once"


class RequestTimeout(BookKeeperError):
    """No answer came in time; whether the request took effect is unknown."""

    code = -23
    remedy = "look at the bookie's load and disks; read the ledger to learn what took effect"


class ReadFailed(BookKeeperError):
    """Every replica that may have the entry failed; the entry may exist nevertheless."""

    is_refusal = False
    """Whether the bookies do not let this client read, so that a later try would fail, too."""
    code = -1
    remedy = "bring the named bookies back, and read again; if they refuse this client, let it read the ledger first"


class DataLoss(BookKeeperError):
    """Data at a stored position no longer exists."""

    code = -13
    remedy = (
        "find out what truncated or deleted it; read from the first position that is left (Spark: failOnDataLoss=false)"
    )


class MalformedPayload(BookKeeperError):
    """An entry is intact, but its payload does not fit the format or the schema."""

    code = -999
    remedy = "check payloadFormat and the schema against what was written"


class ClientClosed(BookKeeperError):
    """The client was closed while the call was under way."""

    code = -19
    remedy = "create another client or writer"


class StorageDamaged(BookKeeperError):
    """Stored bytes of a bookie fail their checks where acknowledged data may lie; the message names file and offset."""

    remedy = "restore the file that the message names, or replace the bookie and let its ledgers be copied"


class DiskFull(BookKeeperError):
    """A bookie's disks are full, and it is configured to stop instead of continuing read-only."""

    remedy = "free space, or add a ledger directory"
