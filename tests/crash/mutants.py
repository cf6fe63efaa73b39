"""Planted defects of the storage, and whether the campaigns notice them.

`python -m tests.crash.mutants [--name PART]` runs each against small campaigns, prints what killed it, and the score.
A mutant patches the product while its context lasts. Most are bugs that BookKeeper or another log once had.

EQUIVALENT names defects that change nothing that was promised, each with the argument.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash import (
    directed,
    directed_steps,
    planted,
    planted_directories,
    planted_index,
    planted_journal,
    planted_storages,
)
from tests.crash import planted_collection as collecting
from tests.crash.faults import misdirect_position
from tests.crash.hunting import (
    Mutant,
    hunt_answers,
    hunt_collections,
    hunt_crashes,
    hunt_errors,
    hunt_flips,
    hunt_twice,
    killed_by,
)
from tests.crash.scripts import DirectoriesScript
from tests.crash.step_mutants import COMMIT_MUTANTS, DOUBT_MUTANTS, FULL_DISK_MUTANTS, HEADER_MUTANTS, START_MUTANTS


def _crash(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]], first_seed: int = 1) -> Mutant:
    return Mutant(name, bug, plant, partial(hunt_crashes, first_seed=first_seed))


def _collect(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]], first_seed: int = 1) -> Mutant:
    return Mutant(name, bug, plant, partial(hunt_collections, first_seed=first_seed))


def _db(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]]) -> Mutant:
    return Mutant(name, bug, plant, partial(hunt_crashes, storage_class=StorageClass.DB))


def _directories(name: str, bug: str, plant: Callable[[], AbstractContextManager[Any]], first_seed: int = 1) -> Mutant:
    return Mutant(name, bug, plant, partial(hunt_crashes, script=DirectoriesScript, first_seed=first_seed))


DIRECTORY_MUTANTS = (
    _directories(
        "mark moved before one directory synced",
        "the journal goes, and a late disk never wrote its part of the index",
        planted_directories.mark_moved_while_late,
        18,
    ),
    _directories(
        "late sync forgotten",
        "an index file counts as durable that a late disk has not synced",
        planted_directories.late_sync_forgotten,
    ),
    _directories(
        "one directory of several not synced",
        "positions of bytes that are lost",
        planted_directories.one_directory_not_synced,
        7,
    ),
)

STORAGE_MUTANTS = (
    Mutant(
        "positions of arrival in order of ledgers",
        "entries of an unsorted flush get each other's positions",
        planted_storages.unordered_positions,
        partial(hunt_answers, StorageClass.INTERLEAVED),
    ),
    _db("key-value store not synced", "the mark moves past positions in memory", planted_storages.unsynced_store),
    _db("commit number before sync", "a crash in between stops the start", planted_storages.commit_before_sync),
    _db("blocks overwritten", "a flush takes older positions of a block away", planted_storages.overwritten_blocks),
    _db("headers without entries left out", "a fence without an add is lost", planted_storages.headers_left_out),
    Mutant(
        "commit number not checked",
        "a store that lost its end is taken for whole",
        planted_storages.unchecked_commit,
        directed.rewind_key_value_store,
    ),
    Mutant(
        "read-ahead cache never forgets",
        "an entry's older version is served after a flush",
        planted_storages.stale_read_ahead,
        directed.reread_rewritten_entry,
    ),
    Mutant(
        "read-ahead cache first",
        "an entry's older version is served from behind the write cache",
        planted_storages.read_ahead_in_front,
        partial(hunt_answers, StorageClass.DB),
    ),
    Mutant(
        "one log of many synced",
        "positions of bytes that are lost",
        planted_storages.only_last_log_synced,
        directed.crash_flush_of_several_logs,
    ),
    _crash("log evicted without sync", "positions of bytes that are lost", planted_storages.unsynced_seal),
    Mutant(
        "logs rotated while written to",
        "a compaction removes what follows",
        planted_storages.active_logs_settled,
        directed.compact_while_written,
    ),
    Mutant(
        "settled without an index",
        "a log is deleted whose positions the index lacks, because it had no space",
        planted_storages.logs_settled_without_an_index,
        directed_steps.collect_while_the_index_waits_for_space,
    ),
    Mutant(
        "positions of ledgers' own logs mixed",
        "entries of several ledgers get each other's positions",
        planted_storages.ledgers_in_one_anothers_log,
        directed.crash_flush_of_several_logs,
    ),
)
"""Defects of one storage, or of entry logs per ledger."""

MUTANTS = (
    *STORAGE_MUTANTS,
    *DIRECTORY_MUTANTS,
    *COMMIT_MUTANTS,
    *START_MUTANTS,
    *DOUBT_MUTANTS,
    *FULL_DISK_MUTANTS,
    *HEADER_MUTANTS,
    _crash("reply before sync", "a group is acknowledged from the page cache", planted_journal.unsynced_group),
    _crash("reply before write", "a group is acknowledged and never written", planted_journal.unwritten_group),
    _crash(
        "journal header not synced", "a new file is used before its header is durable", planted_journal.unsynced_header
    ),
    _crash("journal name not synced", "a new journal file's name is lost", planted_journal.unsynced_journal_name),
    Mutant(
        "replayed LAC taken for durable",
        "a killed process wrote it and did not sync it; the mark moves past its record",
        planted_journal.lac_taken_for_durable,
        directed.cut_power_after_a_kill_in_a_header_write,
    ),
    _crash(
        "journal named early", "a crash leaves a name of a file that never was", planted_journal.journal_named_early, 9
    ),
    Mutant(
        "newest journal not named",
        "D12: the newest journal file is lost, and nothing misses it",
        planted_journal.unnamed_journal,
        directed.lose_newest_journal,
    ),
    _crash("fence not journaled", "S01, BOOKKEEPER-500: a fence is only in memory", planted_journal.unjournaled_fence),
    Mutant(
        "fence answered early",
        "X2: the answer leaves before the fence is durable",
        planted.early_fence_answer,
        directed.crash_before_fence_is_durable,
    ),
    Mutant(
        "fence not flushed",
        "S02, BOOKKEEPER-815: the mark passes a fence the index lacks",
        planted.unflushed_fence,
        directed.crash_fenced_ledger,
    ),
    _crash("fence lost in the header", "the flushed header forgets the fence", planted.unfenced_header),
    _crash("key not journaled", "S14, #1255: entries without their ledger's key", planted_journal.unjournaled_key),
    _crash("key after entries", "replay meets an entry before the key of its ledger", planted_journal.late_key),
    _crash("key not flushed", "S14: the mark passes a key the index lacks", planted.unflushed_key),
    _crash("replay drops keys", "S22: the key is not put back, and the journal goes", planted.replay_drops_keys),
    _crash("explicit LAC not journaled", "an explicit LAC is only in memory", planted_journal.unjournaled_lac),
    Mutant(
        "explicit LAC answered early",
        "the answer leaves before the LAC is durable",
        planted.early_lac_answer,
        directed.crash_before_fence_is_durable,
    ),
    _crash("explicit LAC not flushed", "the mark passes an explicit LAC the index lacks", planted.unflushed_lac),
    _crash("explicit LAC lost in the header", "the flushed header forgets the LAC", planted.lacless_header),
    Mutant(
        "explicit LAC goes back",
        "a late, lower LAC replaces a higher one",
        planted.receding_lac,
        directed.write_late_lac,
    ),
    _crash("replay drops explicit LACs", "replay does not know the record", planted_journal.replay_drops_lacs),
    _crash("mark before flush", "S15, #659: the mark moves before the entry logs", planted.mark_before_flush),
    _crash("mark newer than flush", "S15, #1345: the mark is taken when the flush ends", planted.mark_newer_than_flush),
    _crash(
        "journal removed before mark", "S20: a crash finds neither mark nor file", planted.journal_removed_first, 39
    ),
    _crash(
        "one journal too many removed", "the file that the mark points into goes", planted_journal.removes_marked_file
    ),
    _crash("mark name not synced", "S20: the old mark returns, its journals do not", planted.unsynced_mark_name),
    _crash(
        "mark not moved after replay",
        "S21, #2087: journals go, the old mark stays",
        planted_journal.mark_stays_after_replay,
    ),
    _crash(
        "replay not flushed", "S21: the mark passes what replay only holds in memory", planted_journal.unflushed_replay
    ),
    _crash("shared mark", "S18, #1254: two journals write one mark", planted.shared_mark, 9),
    _crash("replay stops early", "S11, #2176: the last record is not applied", planted_journal.replay_stops_early),
    _crash(
        "replay drops fences", "BOOKKEEPER-500: replay does not know the record", planted_journal.replay_drops_fences
    ),
    Mutant(
        "replay trusts the page cache",
        "a killed process's tail counts as durable",
        planted_journal.trusting_replay,
        hunt_twice,
    ),
    Mutant(
        "replay trusts names",
        "a killed process's index file counts as durable",
        planted_journal.trusted_names,
        directed.cut_power_after_a_kill,
    ),
    Mutant(
        "torn tail not cut",
        "S10: the next file says that the torn record is whole",
        planted_journal.uncut_tail,
        directed.crash_recovery_of_torn_tail,
    ),
    _crash("torn tail refused", "S10, BOOKKEEPER-166: a torn record stops the start", planted_journal.refused_tail),
    _crash("unborn file kept", "a file without a durable header stops the start", planted_journal.kept_unborn_file),
    _crash(
        "body not verified",
        "S38, #4659: a zero body after a durable header is taken",
        planted_journal.unverified_body,
        7,
    ),
    _crash("synced too new", "a record calls others of its own group durable", planted_journal.synced_too_new, 8),
    Mutant(
        "last group not proved", "damage in the last group is taken for a tail", planted_journal.unsettled, hunt_flips
    ),
    Mutant(
        "stale records",
        "D4: a reused file's old records are replayed",
        planted_journal.stale_records,
        directed.crash_reused_journals,
    ),
    _crash(
        "index before entry log",
        "S04, BOOKKEEPER-447: positions of bytes that are lost",
        planted_index.unsynced_entry_log,
    ),
    _crash("entry log not synced on roll", "#659: only the newest log is synced", planted_index.unsynced_full_log),
    _crash("entry log name not synced", "positions into a log whose name is lost", planted_index.unsynced_log_name, 12),
    Mutant(
        "entry log name not synced beside another store",
        "positions of one directory's store into a log of another, whose name is lost",
        planted_index.unsynced_log_name,
        directed.flush_into_another_directory_than_the_index,
    ),
    _crash("index not synced", "S07: the mark moves past positions in the page cache", planted_index.unsynced_index),
    _crash("index name not synced", "an index file's name is lost after the mark", planted_index.unsynced_index_name),
    _crash(
        "index folder not synced",
        "an index folder's name is lost after the mark",
        planted_index.unsynced_index_folder,
        9,
    ),
    _crash(
        "mark at every flush", "S07: the mark passes positions that are only in memory", planted.mark_at_every_flush
    ),
    _crash("dirty page dropped", "S07, #1534: dirty pages never reach their files", planted_index.dropped_dirty_page),
    _crash(
        "evicted page dropped", "a dirty page is thrown out without being written", planted_index.dropped_evicted_page
    ),
    _crash("evicted page not synced", "an evicted page counts as durable", planted_index.unsynced_evicted_page),
    Mutant(
        "page partly written",
        "S17: the earlier change of a page is forgotten",
        planted_index.partly_written_page,
        directed.crash_held_index,
    ),
    Mutant(
        "page hides changes", "S17: a reader's copy of a page stays as it was", planted_index.stale_page, hunt_answers
    ),
    _crash("log ids collide", "S09, BOOKKEEPER-142: a restart overwrites entry log 1", planted_index.colliding_log_ids),
    _crash("older version wins", "a flush drops the newer of two versions", planted_index.older_version_wins),
    _crash(
        "flush drops late entries", "a sorted flush forgets entries out of order", planted_index.late_entries_dropped
    ),
    Mutant(
        "striped positions zeroed",
        "S17: a flush overwrites its gaps",
        planted_index.zeroed_gaps,
        directed.crash_striped_ledger,
    ),
    _crash("cut position", "an index file cut inside a position stops the start", planted_index.cut_position),
    _crash("half forgotten early", "S30: a half is emptied before it is on disk", planted.half_forgotten_early),
    Mutant("wrong key taken", "S03, BOOKKEEPER-135: a wrong password writes", planted.wrong_key_taken, hunt_answers),
    Mutant(
        "single add through a fence",
        "S01: the way of adds that come alone forgets the fence",
        planted.single_add_through_fence,
        directed.single_add_after_a_fence,
    ),
    _crash(
        "single add not journaled", "an add that comes alone is answered from memory", planted.unjournaled_single_add
    ),
    Mutant("wrong key fences", "S03: a wrong password fences", planted.wrong_key_fences, hunt_answers),
    Mutant(
        "failed sync ignored",
        "D8: an error of the journal is swallowed",
        planted_journal.ignored_sync_error,
        hunt_errors,
    ),
    Mutant(
        "failed flush ignored",
        "S27, #4114: the mark moves after a failed flush",
        planted.ignored_flush_error,
        hunt_errors,
    ),
    Mutant(
        "failed mark ignored",
        "journals go although the mark was not written",
        planted.ignored_mark_error,
        partial(hunt_errors, 2),
    ),
    Mutant(
        "middle taken as tail",
        "S11, #2178: damage in the middle ends replay",
        planted_journal.damage_taken_as_tail,
        hunt_flips,
    ),
    Mutant(
        "ids not verified", "D6: another entry's bytes are served", planted_index.unverified_ids, misdirect_position
    ),
    Mutant(
        "doubt answered negatively",
        "#2908: an unreadable entry is 'no such entry'",
        planted.negative_doubt,
        partial(hunt_flips, ".log"),
    ),
    Mutant(
        "header not verified",
        "a damaged fence bit or key is believed",
        planted_index.unverified_header,
        partial(hunt_flips, ".idx"),
    ),
    _collect("copy not synced", "S06, BOOKKEEPER-926: the index points to lost copies", collecting.unsynced_copy),
    Mutant(
        "log removed before move",
        "S05, BOOKKEEPER-530: positions into a log that is gone",
        collecting.removed_before_move,
        directed.read_during_collection,
    ),
    _collect("move not synced", "S07, #1534: the old log goes before the index is durable", collecting.unsynced_move),
    Mutant(
        "new log's name not synced",
        "B6: the old log and the intent go, the new name does not stay",
        collecting.unsynced_adopted_name,
        directed.crash_compaction_across_directories,
    ),
    _collect("temporary log kept", "S08, #571: what a crash left of a copy stays for ever", collecting.kept_temporary),
    _collect("intent kept", "B6: the next start finishes what was finished", collecting.kept_intent),
    Mutant(
        "newer position overwritten",
        "an entry written again during a compaction is its older version again",
        collecting.moved_over_newer,
        directed.rewrite_during_compaction,
    ),
    _collect("last entry not moved", "B6: a position into the removed log stays", collecting.last_move_missing),
    _collect("first entry not copied", "B6: a live entry counts as dead", collecting.first_row_not_copied),
    _collect("ledger missing in the map", "S23, #4607: a log with live entries counts as dead", collecting.short_map),
    _collect("few live bytes are none", "B8: a log goes that has live entries", collecting.nearly_dead_is_dead, 9),
    Mutant(
        "open log collected",
        "a flush goes on in a file that was removed",
        collecting.open_log_collected,
        directed.collect_open_log,
    ),
    _collect("one proof is enough", "S13, #865, #870: what a listing misses is dropped", collecting.one_proof, 21),
    _collect(
        "lagging server believed",
        "Z6: a ledger that a server does not know yet is dropped",
        collecting.never_caught_up,
        31,
    ),
    Mutant(
        "direct reads of a lagging server",
        "Z6: what a listing misses is asked of a session that knows less",
        collecting.caught_up_once,
        directed.collect_by_a_new_session,
    ),
    Mutant(
        "failure is a proof",
        "B8: a store that does not answer counts as an empty one",
        collecting.failure_is_proof,
        directed.collect_without_metadata,
    ),
    Mutant(
        "own ledgers listed last",
        "S12, BOOKKEEPER-193: a ledger created meanwhile is dropped",
        collecting.listed_last_and_dropped,
        directed.create_during_listing,
    ),
    Mutant(
        "written ledgers dropped",
        "a ledger that is created again with the same id after its direct read is dropped",
        collecting.written_dropped,
        directed.create_again_after_direct_read,
    ),
    _collect("no tombstone", "P21, #4462: a late writer makes a fenced ledger again", collecting.no_tombstones, 6),
    _collect("tombstone after the drop", "P21: a crash in between forgets the fence", collecting.late_tombstones),
    _collect("tombstone not synced", "P21: a power cut forgets the fence", collecting.unsynced_tombstones, 6),
    _crash("index file noted early", "a crash makes an index file count as lost", planted_index.noted_before_durable),
    Mutant(
        "lost index file believed",
        "B2: what an index file that is cut or removed held is denied",
        planted_index.lost_index_believed,
        directed.lose_index_file,
    ),
    Mutant(
        "index file removed without a note",
        "a deleted ledger counts as lost after a crash",
        collecting.removed_without_a_note,
        directed.crash_after_a_drop,
    ),
    _collect(
        "fence forgotten when dropped",
        "P21: a fenced ledger is dropped as if it were not",
        collecting.forgotten_fence,
        6,
    ),
)

EQUIVALENT = {
    "mark data not synced": "a mark that fails its checksum counts as none, and then everything that is left of the "
    "journal is replayed; files go only below a durable mark, and replaying more than needed changes nothing",
    "mark in one directory only": "the highest of all copies counts, and each copy is true by itself",
    "lowest mark counts": "journals go only after every copy is durable, so the lowest copy's journals are there too",
    "lastId not written": "the highest of it and of the log files found counts; the id of a "
    "newest log that was removed may come again, and nothing points to it",
    "tail of a found file of headers not synced": "the sync of the next record covers it, and the journal has its rows "
    "until then",
    "intent not synced": "before the index moves both logs are whole, and when it has moved the old one holds nothing",
    "removed ledgers not synced": "a ledger that returns is garbage again; its fence is in its header and remembered",
    "equal generations": "both header slots of one change hold the same bytes; while they differ the journal has it",
    "both header slots written without a sync between": "they lie in two physical sectors of 4096 bytes, and a power "
    "cut tears the one that is being written at that moment, not both",
    "key not put back when the index shows it": "a key is journaled with the entries or the fence that brought it, so "
    "replay writes and syncs that index file again, and the key with it",
}


def survivors(mutants: Iterator[Mutant], report: Callable[[str], None]) -> list[str]:
    """Return the names of the mutants that nothing noticed; `report` gets a line for each mutant."""
    alive = []
    for mutant in mutants:
        sign = killed_by(mutant)
        report(f"{'killed  ' if sign else 'SURVIVED'} {mutant.name}: {(sign or mutant.bug)[:150]}")
        if sign is None:
            alive.append(mutant.name)
    return alive


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("--name", default="", help="only mutants whose name contains this")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if options.name in mutant.name]
    # The bookie logs each EIO that it answers.
    logging.disable()
    alive = survivors(iter(chosen), lambda line: print(line, flush=True))
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed; {len(EQUIVALENT)} equivalent, by argument")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
