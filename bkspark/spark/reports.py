"""The reports of a write's task attempts to the driver, and the errors of a commit that cannot publish them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from bkspark.entries import EntryBatch
from bkspark.errors import SchemaMismatch, VersionPublished
from bkspark.log.epochs import Output
from bkspark.log.formats import Publisher, SegmentFacts, SegmentOwner

_log = logging.getLogger(__name__)

_NAMED_MAX = 5
"""Logs that an error names."""


@dataclass(frozen=True)
class LogResult:
    """The output of an attempt for one of many logs, whose name is `log`.

    `ledgers`, `entries`, `rows`, `schema`: as in `AttemptResult`, of this log alone.
    """

    log: str
    ledgers: tuple[SegmentFacts, ...]
    entries: EntryBatch | None = field(default=None, repr=False)
    rows: int = 0
    schema: str | None = None


@dataclass(frozen=True)
class AttemptResult(WriterCommitMessage):
    """The output of a task attempt: closed ledgers in order, or entries that the driver appends; neither without rows.

    `owner`: the owner of the attempt. `query`: the id of its streaming query, if there is one. `schema`: the name of
    the log's schema that the rows fit. If the rows named their logs, `logs` has the output, and the other fields are
    empty.
    """

    owner: SegmentOwner
    ledgers: tuple[SegmentFacts, ...]
    entries: EntryBatch | None = field(default=None, repr=False)
    rows: int = 0
    query: str | None = None
    schema: str | None = None
    logs: tuple[LogResult, ...] = ()


def results_of(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptResult]:
    """Return the outputs of the successful attempts, in partition order."""
    results = [message for message in messages if isinstance(message, AttemptResult)]
    return sorted(results, key=lambda result: result.owner.partition or 0)


def output_of(result: AttemptResult | LogResult) -> Output:
    """Return the output of an attempt in the form that committers publish."""
    return Output(result.ledgers, () if result.entries is None else (result.entries,))


def schema_changed(log: str) -> SchemaMismatch:
    """Return the error of a commit whose rows do not fit the log's schema any more."""
    return SchemaMismatch(
        f"log {log} got another schema while the rows were written: nothing was published. Start again"
    )


def refusal(error: VersionPublished, rows: int, epoch: int) -> VersionPublished:
    """Return the error with what to do about it. A query's epoch 0 has version txnVersion."""
    assert error.last_version is not None
    return VersionPublished(
        f"{error}. Its {rows} rows were not written. If they differ from those of the other query, give this query a "
        f"txnAppId of its own, or let it continue after the last version with txnVersion "
        f"{error.last_version + 1 - epoch} (in foreachBatch: a number plus the batch id, above the last version). If "
        "both have the same rows in the same versions, set ifPublished to skip: published versions are left out",
        last_version=error.last_version,
    )


def not_in_logs(logs: Sequence[str], publisher: Publisher, rows: int) -> VersionPublished:
    """Return the error of a job that repeats a version, whose rows name logs that lack the version."""
    names = ", ".join(logs[:_NAMED_MAX]) + (f" and {len(logs) - _NAMED_MAX} more" if len(logs) > _NAMED_MAX else "")
    return VersionPublished(
        f"version {publisher.version} of {publisher.name!r} was published before, but not in log {names}: it was "
        f"published in other logs, or what it wrote there was deleted. Its {rows} rows were not written. To write "
        "them, set a higher txnVersion or another txnAppId; to leave them out, set ifPublished to skip",
        last_version=publisher.version,
    )


def publish_once(change: Callable[[], bool], rows: int, epoch: int, *, skips: bool) -> bool | None:
    """Publish a version of `rows` rows by `change`; return whether it is new.

    Returns:
        None: another query has published the version. With `skips`, option ifPublished, its rows are left out.

    Raises:
        VersionPublished: the same without `skips`.
    """
    try:
        return change()
    except VersionPublished as error:
        if not skips:
            raise refusal(error, rows, epoch) from None
        _log.warning("%s. Its %d rows are left out, as option 'ifPublished' is skip", error, rows)
        return None


def warn_of_repetition(what: str, publisher: Publisher, rows: int) -> None:
    """Log that a version was published before, so that these rows are left out."""
    by_whom = "" if publisher.query is None else f", by the same query {publisher.query}"
    _log.warning("%s already%s: its %d rows are not written again", what, by_whom, rows)
