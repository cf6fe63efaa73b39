"""Planted defects of what happens in steps: commits, forces, starts, drops and full disks; see `mutants`."""

from __future__ import annotations

from functools import partial

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash import (
    directed,
    directed_headers,
    directed_steps,
    planted_commits,
    planted_doubts,
    planted_headers,
    planted_starts,
)
from tests.crash.doubts import Damage
from tests.crash.hunting import (
    Mutant,
    hunt_collections,
    hunt_commit_errors,
    hunt_crashes,
    hunt_deferrals,
    hunt_doubts,
    hunt_full_starts,
    hunt_recoveries,
)

COMMIT_MUTANTS = (
    Mutant(
        "mark not forced",
        "a mark is taken that comes after a deferred group; the journal of this group goes before it is durable",
        planted_commits.mark_not_forced,
        directed.crash_after_a_mark_of_deferred_adds,
    ),
    Mutant(
        "commit not synced",
        "an add that comes alone is answered from the page cache",
        planted_commits.unsynced_commit,
        hunt_crashes,
    ),
    Mutant(
        "commit before what is held",
        "a later sequence number is durable, and an earlier one counts as such",
        planted_commits.commit_before_held,
        partial(hunt_crashes, first_seed=8),
    ),
    Mutant(
        "commit beside the thread",
        "event loop and journal thread write at the same time",
        planted_commits.commit_beside_thread,
        partial(hunt_crashes, first_seed=13),
    ),
    Mutant(
        "failed journal goes on",
        "D8: what a failed sync lost counts as durable with the next one",
        planted_commits.failed_journal_used,
        hunt_commit_errors,
    ),
    Mutant(
        "mixed group not synced",
        "an ordinary add beside a deferred one is answered from the page cache",
        planted_commits.mixed_group_deferred,
        partial(hunt_deferrals, first_seed=5),
    ),
    Mutant(
        "held records handed over last",
        "a mark is taken that comes before records which it covers",
        planted_commits.held_handed_over_last,
        hunt_crashes,
    ),
    Mutant(
        "submitted counts as written",
        "what came while a group was written counts as durable with it",
        planted_commits.submitted_counted_as_written,
        partial(hunt_deferrals, first_seed=4),
    ),
    Mutant(
        "deferred group counts as durable",
        "LastAddSynced moves past what is in the page cache alone",
        planted_commits.deferred_counted_as_durable,
        hunt_deferrals,
    ),
    Mutant(
        "second fence answered early",
        "X2: a second recovery is answered before the first one's fence is durable",
        planted_commits.second_fence_early,
        hunt_crashes,
    ),
    Mutant(
        "second explicit LAC answered early",
        "a LAC that does not advance is answered before the higher one is durable",
        planted_commits.second_lac_early,
        hunt_crashes,
    ),
    Mutant(
        "add sent again answered early",
        "N4: bytes that the write cache has are answered before they are durable",
        planted_commits.resent_add_answered_early,
        partial(hunt_crashes, first_seed=9),
    ),
    Mutant(
        "revived fence not journaled",
        "P21: a repair makes a fenced, dropped ledger again; a crash forgets the fence",
        planted_commits.revived_fence_not_journaled,
        partial(hunt_collections, 10),
    ),
    Mutant(
        "fence without its key",
        "S14: replay meets the fence of a ledger without key",
        planted_commits.fence_without_key,
        hunt_crashes,
    ),
    Mutant(
        "single add to the first journal",
        "an add is in a journal that its ledger is not replayed from",
        planted_commits.single_add_to_first_journal,
        hunt_crashes,
    ),
    Mutant(
        "force answered at once",
        "C11: a force is answered before anything is synced",
        planted_commits.force_answered_at_once,
        hunt_deferrals,
    ),
    Mutant(
        "force without a flush",
        "C11: entries that bypass the journal count as durable in the write cache",
        planted_commits.bypassing_not_flushed,
        hunt_deferrals,
    ),
    Mutant(
        "force forgets the running flush",
        "C11: a force is answered while the flush that has its entries runs",
        planted_commits.running_flush_forgotten,
        hunt_deferrals,
    ),
    Mutant(
        "flush counted when it begins",
        "C11: a force is answered when the flush begins",
        planted_commits.flush_counted_when_begun,
        partial(hunt_deferrals, first_seed=6),
    ),
    Mutant(
        "deferred adds counted when taken",
        "C11: LastAddSynced moves when an add is taken",
        planted_commits.deferred_counted_when_taken,
        hunt_deferrals,
    ),
    Mutant(
        "any flush answers forces",
        "C11: a flush that leaves the index in memory answers forces",
        planted_commits.forces_of_any_flush,
        hunt_deferrals,
    ),
    Mutant(
        "deferred records called synced",
        "a record tells replay that what is not synced is",
        planted_commits.deferred_groups_counted_as_synced,
        hunt_deferrals,
    ),
)
"""Defects of the journal's thread, of the event loop's own commits, and of deferred adds."""

START_MUTANTS = (
    Mutant(
        "journal directory not synced at a start",
        "a killed process's journal counts as durable by name",
        planted_starts.unsynced_journal_directory,
        partial(hunt_recoveries, "roll"),
    ),
    Mutant(
        "finished compaction not synced",
        "a start finishes a killed process's compaction; a power cut takes the new log's name",
        planted_starts.unsynced_adopted_log,
        partial(hunt_recoveries, "compact"),
    ),
    Mutant(
        "directories not synced at the first start",
        "a power cut takes the directories that everything is in",
        planted_starts.unsynced_current_directories,
        partial(hunt_recoveries, "first start"),
    ),
    Mutant(
        "marks before what was replayed",
        "S21: a start moves the marks, and then flushes what it replayed",
        planted_starts.marks_before_replay_is_flushed,
        partial(hunt_recoveries, "rewrite"),
    ),
    Mutant(
        "journals go before the marks at a start",
        "S20: a start removes journals, and then moves the marks",
        planted_starts.journals_forgotten_before_marks,
        partial(hunt_recoveries, "rewrite"),
    ),
    Mutant(
        "dropped before the marks",
        "a ledger is dropped that replay will find again, without its key",
        planted_starts.dropped_before_marks,
        hunt_collections,
    ),
    Mutant(
        "any flush counts as before the marks",
        "a ledger is dropped that replay will find again, without its key",
        planted_starts.any_flush_moves_marks,
        hunt_collections,
    ),
    Mutant(
        "late add revives",
        "P21: a late add makes a fenced, dropped ledger again",
        planted_starts.late_add_revives,
        partial(hunt_collections, first_seed=6),
    ),
    Mutant(
        "key-value store's directory not synced",
        "a power cut takes the directory of the key-value store",
        planted_starts.unsynced_key_value_directory,
        partial(hunt_crashes, storage_class=StorageClass.DB),
    ),
    Mutant(
        "highest log id of one directory",
        "S09: a restart overwrites a log of another directory",
        planted_starts.ids_of_first_directory,
        directed_steps.restart_with_logs_in_two_directories,
    ),
    Mutant(
        "spare journal file offered twice",
        "D4: two journal files share one file",
        planted_starts.spare_offered_twice,
        directed_steps.checkpoint_twice_between_two_journals,
    ),
    Mutant(
        "changed headers count as before the marks",
        "a ledger is dropped whose fence replay will find again",
        planted_starts.changed_headers_not_unmarked,
        directed_steps.drop_ledger_whose_fence_is_not_before_the_marks,
    ),
    Mutant(
        "tombstones replaced",
        "P21: a drop forgets the fences of earlier drops",
        planted_starts.tombstones_replaced,
        directed_steps.drop_fenced_ledgers_one_after_another,
    ),
    Mutant(
        "late explicit LAC revives",
        "P21: a late explicit LAC makes a fenced, dropped ledger again",
        planted_starts.late_lac_revives,
        directed_steps.write_lac_behind_a_drop,
    ),
    Mutant(
        "no space taken for done",
        "S30: a flush that found no space counts as done",
        planted_starts.no_space_taken_for_done,
        directed_steps.read_what_found_no_space,
    ),
    Mutant(
        "gap ignored",
        "a run from the log goes on over an entry that is being flushed again",
        planted_starts.gap_of_flushing_half_ignored,
        directed_steps.read_entry_that_is_flushed_again,
    ),
    Mutant(
        "flushing half first",
        "the older of two versions in memory is served",
        planted_starts.flushing_half_first,
        directed_steps.read_entry_that_is_flushed_again,
    ),
)
"""Defects of a start's clean-up, of the order of drops, and of full disks."""

DOUBT_MUTANTS = (
    Mutant(
        "ledgers in doubt compacted",
        "what has no position is left out of a rewritten log",
        planted_doubts.doubt_ignored,
        hunt_doubts,
    ),
    Mutant(
        "limbo left without a fence",
        "the lost header had one, and a late writer goes on",
        planted_doubts.left_limbo_unfenced,
        partial(hunt_doubts, Damage.REMOVED),
    ),
    Mutant(
        "limbo left before the fence is durable",
        "a crash in between leaves a ledger that takes adds",
        planted_doubts.left_limbo_early,
        partial(hunt_doubts, Damage.REMOVED),
    ),
    Mutant(
        "limbo not synced",
        "a power cut forgets which ledgers are in doubt",
        planted_doubts.limbo_not_synced,
        hunt_doubts,
    ),
    Mutant(
        "limbo not written",
        "a restart forgets which ledgers are in doubt",
        planted_doubts.limbo_in_memory,
        partial(hunt_doubts, Damage.REMOVED),
    ),
    Mutant(
        "rebuilt ledger not in doubt",
        "the fence is lost with the header, and a late writer goes on",
        planted_doubts.rebuilt_without_doubt,
        partial(hunt_doubts, Damage.REMOVED),
    ),
    Mutant(
        "dropped in doubt, without a tombstone",
        "P21: a late writer makes a ledger again that may have been fenced",
        planted_doubts.dropped_in_doubt_unfenced,
        partial(hunt_doubts, Damage.REMOVED),
    ),
    Mutant(
        "absence in limbo is certain",
        "an entry whose position is lost is denied",
        planted_doubts.absence_certain,
        hunt_doubts,
    ),
)
"""Defects of limbo, of garbage collection around it, and of rebuilds."""

FULL_DISK_MUTANTS = (
    Mutant(
        "marks in every directory or nowhere",
        "B1: one full directory makes the whole bookie read-only",
        planted_starts.mark_in_every_directory,
        hunt_full_starts,
    ),
    Mutant(
        "compaction finished or the start refused",
        "a full directory keeps a bookie from starting",
        planted_starts.compaction_finished_or_refused,
        hunt_full_starts,
    ),
    Mutant(
        "journals go without marks",
        "a start without space for marks removes the journals",
        planted_starts.journals_forgotten_without_marks,
        hunt_full_starts,
    ),
    Mutant(
        "stuck flush dropped",
        "what a start could not flush is gone from memory",
        planted_starts.stuck_flush_dropped,
        hunt_full_starts,
    ),
)
"""Defects of starts with full ledger directories."""

HEADER_MUTANTS = (
    Mutant(
        "row of a header not synced",
        "the mark moves past a fence in the page cache",
        planted_headers.unsynced_row,
        directed_headers.crash_headers,
    ),
    Mutant(
        "file of headers not synced",
        "a power cut leaves a torn file, or its older version",
        planted_headers.unsynced_file,
        directed_headers.crash_headers,
    ),
    Mutant(
        "name of a found file of headers not synced",
        "a killed process wrote it; it is noted, and a power cut takes it",
        planted_headers.found_name_not_synced,
        directed_headers.crash_start_after_headers,
    ),
    Mutant(
        "header dropped before its index file is durable",
        "a power cut leaves neither, and replay has no key",
        planted_headers.dropped_before_its_file,
        directed_headers.crash_headers,
    ),
    Mutant(
        "header of a dropped ledger kept",
        "what any client may send stays for ever",
        planted_headers.never_dropped,
        directed_headers.hunt_headers,
    ),
    Mutant(
        "first entry forgets the fence",
        "the new index file has the ledger's key only",
        planted_headers.unfenced_file,
        directed_headers.crash_headers,
    ),
    Mutant(
        "file of headers not noted",
        "its loss goes unnoticed, and fenced ledgers take adds",
        planted_headers.unnoted,
        directed_headers.lose_headers,
    ),
    Mutant(
        "file of headers noted before it is durable",
        "a crash alone puts every ledger in doubt",
        planted_headers.noted_before_durable,
        directed_headers.crash_headers,
    ),
    Mutant(
        "header appended to a file that is not noted",
        "a torn record counts as a loss, and every ledger is in doubt",
        planted_headers.appended_to_an_unnoted_file,
        directed_headers.crash_first_header_after_all_were_dropped,
    ),
    Mutant(
        "index file noted that has no header yet",
        "the header that counts is dropped, and the start is refused",
        planted_headers.found_file_noted,
        directed_headers.crash_manifest_beside_a_first_entry,
    ),
    Mutant(
        "torn record of headers counts as a loss",
        "a crash alone puts every ledger in doubt",
        planted_headers.torn_record_refused,
        directed_headers.crash_headers,
    ),
    Mutant(
        "rows of headers not verified",
        "a damaged fence bit or key is believed",
        planted_headers.unverified_rows,
        directed_headers.lose_headers,
    ),
)
"""Defects of the file of headers of ledgers without entries."""
