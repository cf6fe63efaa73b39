"""Defects planted into the shipped client's shells, and in how many schedules of the full tier each is noticed.

`python -m tests.simulation.shell_mutants [--schedules N] [--name PART] [--markdown]` prints what noticed which, and the
score; docs/simulation.md keeps the table. What no schedule notices a directed test does (DIRECTED).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from bkspark.wire.status import Status
from tests.ledger import test_recovery_votes
from tests.simulation import planted_shells as shells
from tests.simulation import test_full_scenarios
from tests.simulation.full_schedule import run_full
from tests.simulation.mutants import Hunt, Mutant, add_options

SCHEDULES_MAX = 1_000
"""What a mutant may survive before it counts as not noticed."""


def _mutant(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]], seed: int = 1) -> Mutant:
    return Mutant(name, bug, plant, first_seed=seed)


MUTANTS = (
    _mutant("reads do not fence", "P01: recovery reads carry no fence", shells.recovery_reads_do_not_fence),
    _mutant(
        "first request", "the first request of a recovery does not fence", shells.first_request_does_not_fence, 115
    ),
    _mutant("error is negative", "P26: EIO counts as 'no such entry'", shells.error_is_negative, 140),
    _mutant("unknown is negative", "'unknown ledger state' counts as negative", shells.unknown_state_is_negative, 80),
    _mutant("refusal is negative", "TOOMANYREQUESTS to a fence counts as negative", shells.refusal_is_negative),
    _mutant("damage is negative", "P37: a damaged entry counts as negative", shells.damaged_entry_is_negative, 360),
    _mutant("error covers", "P10: a fence answered EIO counts", shells.fence_answered_with_an_error_counts),
    _mutant("rewritten as an owner", "P34: write-backs lack the recovery flag", shells.rewritten_as_an_owner),
    _mutant("moving LAC", "X1: rewritten entries carry a moving LAC", shells.rewritten_with_a_moving_lac, 500),
    _mutant("length from zero", "the length of rewritten entries begins at 0", shells.rewritten_length_begins_at_zero),
    _mutant("rewriting not awaited", "recovery goes on before write-backs are done", shells.rewriting_not_awaited, 10),
    _mutant("changes forgotten", "recovery's ensembles are not published", shells.changes_of_recovery_forgotten),
    _mutant("taken in", "recovery closes before a new bookie is connected", shells.taken_in_bookie_not_awaited, 370),
    _mutant("no length", "what the last entry says of the length is not read", shells.length_of_no_answer, 385),
    _mutant("lost write: recovery", "a lost CAS counts as done", shells.recovery_takes_a_lost_write_for_done, 245),
    _mutant("lost write: owner", "a lost CAS counts as done", shells.owner_takes_a_lost_write_for_done),
    _mutant("dropped link", "answers on a dropped link count for another", shells.answers_of_a_dropped_link),
    _mutant(
        "loss not reported", "the core does not hear of a lost connection", shells.lost_connection_not_reported, 275
    ),
    _mutant("backlog forgotten", "what waits for a connection is lost", shells.backlog_forgotten),
    _mutant("close too early", "close does not wait for connections", shells.close_does_not_wait_for_connections, 95),
    _mutant("last not sent", "striped: the last entry for a slot is not sent", shells.last_of_chosen_entries_not_sent),
    _mutant("no ticks", "the core's clock does not tick", shells.silence_not_noticed, 125),
    _mutant("LAC too high", "entries carry the last id before theirs as LAC", shells.lac_sent_too_high, 20),
    _mutant("LAC never sent", "entries carry -1 as LAC", shells.lac_never_sent),
    _mutant("LAC one late", "entries carry a LAC one too low", shells.lac_sent_one_late),
    _mutant("length one late", "a batch is sealed with the length before", shells.length_sealed_one_batch_late),
    _mutant("returns one too early", "an append returns one entry too early", shells.reported_one_too_many),
    _mutant("returns when sent", "an append returns when its entries are sent", shells.reported_when_sent),
    _mutant("room kept", "the bytes of acknowledged entries count on", shells.room_never_given_back),
    _mutant("waiters not woken", "callers that wait for room are not woken", shells.waiting_for_room_forgotten),
    _mutant("LAC heard last", "a reader takes the LAC heard last", shells.reader_takes_the_lac_heard_last),
    _mutant("LAC falls", "a reader takes the LAC of its last look alone", shells.refreshed_lac_may_fall),
    _mutant("one answer", "a reader takes the LAC of the first bookie", shells.reader_is_content_with_one_answer, 50),
    _mutant("failure covers: reader", "X3: an answer that failed covers", shells.failed_answer_covers_a_reader, 735),
    _mutant("moved entries", "a reader does not look where entries moved", shells.moved_entries_not_looked_for),
    _mutant("one replica", "a reader asks no second replica", shells.one_replica_asked, 50),
    _mutant("rest of a span", "a span that was read in part counts as read", shells.rest_of_a_span_forgotten, 355),
    _mutant("stripes mixed", "entries of a striped ledger change places", shells.striped_entries_out_of_order, 20),
    _mutant("no digests", "digests are not checked", shells.digests_not_checked, 175),
    _mutant("last entry believed", "the last entry has no digest checked", shells.last_entry_believed),
)


def an_error_is_not_a_fence() -> None:
    """An EIO of a bookie does not count towards coverage."""
    test_recovery_votes.test_error_is_not_proof_that_a_bookie_is_fenced(Status.EIO)


DIRECTED: dict[str, Callable[..., None]] = {
    "error covers": an_error_is_not_a_fence,
    "changes forgotten": (test_full_scenarios.test_recovery_closes_only_after_it_has_sent_the_copies_to_a_replacement),
    "last entry believed": test_full_scenarios.test_last_entry_that_does_not_match_its_digest_tells_no_lac,
    "moved entries": test_full_scenarios.test_p36_reader_looks_where_its_entries_have_moved,
    "lost write: owner": test_full_scenarios.test_owners_change_of_bookies_keeps_what_a_repair_has_changed_meanwhile,
    "dropped link": test_full_scenarios.test_answers_of_a_replaced_bookie_count_for_nothing,
}
"""Tests that fail with a defect that random schedules do not notice.

Entries do not move while a ledger is open, and the schedules repair nothing. An answer of a bookie that was replaced
does harm only in the few milliseconds until its successor has stored the entry, and where its vote is the last that
lacks. An owner that takes a lost change of metadata for done mostly finds the conflict when it looks at the metadata
once more, after it has connected to the new bookie. The others are noticed too, once in 500 schedules or less.
"""

EQUIVALENT = {
    "damage covers": "a bookie that answers the first request of a recovery with a damaged entry has fenced the ledger "
    "nevertheless: it counts towards coverage, and only the LAC that it would have reported is lost; recovery then "
    "begins lower, at entries that are acknowledged, which no (Qw - Qa) + 1 bookies deny",
}

HUNT = Hunt(MUTANTS, lambda mutant, seed: run_full(seed).violations, DIRECTED)


def main(arguments: list[str] | None = None) -> int:
    what = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.shell_mutants", description=what)
    add_options(parser, SCHEDULES_MAX)
    # Bookies log each error that they answer.
    logging.disable()
    return HUNT.run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
