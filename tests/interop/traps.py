"""The trap list of docs/compatibility.md, and the tests that step into each. `python -m tests.interop.conformance`
prints it into docs/compatibility.md; tests/interop/test_conformance.py holds it against the tests."""

from __future__ import annotations

from collections.abc import Iterator

_V2, _V3 = "tests/wire/test_v2.py", "tests/bookie/test_v3.py"
_BOOKIE, _POLL = "tests/bookie/test_bookie.py", "tests/bookie/test_long_poll.py"
_CRASH, _WRITER = "tests/crash/test_scenarios.py", "tests/core/test_writer.py"
_RECOVERY, _SIMULATED = "tests/core/test_recovery.py", "tests/simulation/test_scenarios.py"
_QUORUM, _FORMATS = "tests/core/test_striping_quorum.py", "tests/metadata/test_formats.py"
_LEDGERS, _LIST = "tests/metadata/test_ledgers.py", "tests/metadata/test_underreplication.py"
_BOTH, _TRAPS = "tests/interop/test_both_clients.py", "tests/interop/test_traps.py"

TRAPS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: (
        "A frame's length excludes itself; a V2 master key is 20 bytes, in ADD always, in READ only when fencing",
        (f"{_V2}::test_add_matches_vector", f"{_V2}::test_reads_match_vectors"),
    ),
    2: (
        "Each connection is V2 or V3; a V2 client opens V3 connections too",
        (f"{_V3}::test_item_2_v2_and_v3*", "tests/interop/test_java_tools.py::test_item_4_a_call_that_needs_v3*"),
    ),
    3: (
        "V2 answers belong to (ledger, entry as requested, operation), batch reads to a request id",
        (
            "tests/ledger/test_client_scenarios.py::test_p23_same_entry*",
            f"{_BOOKIE}::test_read_of_last_entry_returns_the_highest_id_and_echoes_minus_one",
        ),
    ),
    4: (
        "No error 107 in V2; an unknown opcode closes the connection",
        (f"{_V3}::test_trap_4_*", f"{_BOOKIE}::test_s39_frame_that_is_not_the_protocol*"),
    ),
    5: (
        "V3: outer and inner status; READ_LAC with nothing is ENOENTRY",
        (f"{_V3}::test_trap_5_*", "tests/wire/test_v3_reads.py::test_failures_are_written_as_protobuf_does"),
    ),
    6: ("A long poll's piggyback needs entry id -1; nothing new is EOK without a body", (f"{_POLL}::test_trap_6_*",)),
    7: (
        "int64 ids are plain varints",
        (f"{_V3}::test_trap_7_*", "tests/wire/test_v3_reads.py::test_reads_are_written_as_protobuf_writes_them"),
    ),
    8: ("START_TLS is answered in clear; V2 with TLS begins in V3", (f"{_V3}::test_trap_8_*",)),
    9: ("Pulsar's frames are 10 KiB larger than the default", (f"{_TRAPS}::test_trap_9_*",)),
    10: (
        "NoSuchEntry is a promise: any doubt is EIO or limbo",
        (
            f"{_BOOKIE}::test_damaged_entry_is_an_io_error_never_a_negative",
            f"{_BOOKIE}::test_p26_*",
            "tests/bookie/test_limbo.py::test_absence_in_limbo_is_never_certain",
            f"{_CRASH}::test_s04_position_beyond*",
        ),
    ),
    11: (
        "An answer to a fencing read implies a durable fence",
        (f"{_BOOKIE}::test_no_answer_to_a_fencing_read*", f"{_CRASH}::test_x2_*"),
    ),
    12: (
        "Key before fence; metadata before the mark; marks only forward, and after every directory",
        (f"{_CRASH}::test_s14_*", f"{_CRASH}::test_s19_*", f"{_CRASH}::test_s20_*"),
    ),
    13: (
        "A fence creates an unknown ledger fenced; fenced, then deleted stays refused",
        (f"{_V3}::test_trap_13_*", "tests/bookie/test_collection_scenarios.py::test_p21_*"),
    ),
    14: (
        "Recovery adds pass on fenced ledgers and, with HIGH_PRIORITY, on read-only bookies; re-replication lacks it",
        (f"{_V3}::test_trap_14_*", f"{_BOOKIE}::test_read_only_bookie_takes*", f"{_TRAPS}::test_trap_14_*"),
    ),
    15: ("Entries are opaque", (f"{_BOOKIE}::test_added_entry_is_returned_verbatim", f"{_TRAPS}::test_trap_15_*")),
    16: (
        "The master key is kept and checked, after restarts too; an all-zero one is unknown",
        (
            f"{_BOOKIE}::test_wrong_master_key*",
            f"{_BOOKIE}::test_trap_16_*",
            f"{_CRASH}::test_s03_*",
            f"{_CRASH}::test_s22_ledger_keeps_its_key*",
        ),
    ),
    17: (
        "The last entry is the highest id held",
        (f"{_BOOKIE}::test_read_of_last_entry*", f"{_TRAPS}::test_trap_17_*"),
    ),
    18: (
        "An expired session registers again; the change to read-only keeps a registration",
        (
            "tests/bookie/test_process.py::test_bookie_whose_session_expired_registers_again",
            "tests/metadata/test_zookeeper.py::test_expired_session*",
            "tests/bookie/test_full_disk.py::test_small_disk*",
        ),
    ),
    19: (
        "Coverage counts only OK, NoSuchEntry and NoSuchLedger",
        (f"{_RECOVERY}::test_error_is_not_a_neg*", f"{_SIMULATED}::test_p10_*", f"{_QUORUM}::test_coverage_holds*"),
    ),
    20: ("W - A + 1 negatives prove absence", (f"{_QUORUM}::test_negatives_that_prove_absence*",)),
    21: (
        "Recovery reads fence, from the ensemble that it began with",
        (f"{_SIMULATED}::test_p01_*", f"{_SIMULATED}::test_p04_*", f"{_WRITER}::test_recovery_keeps_ensemble*"),
    ),
    22: (
        "Acknowledged in order, nothing during a change; replaced indices lose their votes, the same bytes are sent",
        (
            f"{_WRITER}::test_entry_is_acknowledged_at_qa*",
            f"{_WRITER}::test_nothing_is_acknowledged_between*",
            f"{_WRITER}::test_votes_of_a_replaced_bookie*",
            "tests/ledger/test_client_scenarios.py::test_p32_*",
        ),
    ),
    23: (
        "A new ensemble begins at LAC + 1, or replaces the last one",
        (f"{_WRITER}::test_ensemble_change_begins_at_lac*", f"{_WRITER}::test_change_at_the_first_entry*"),
    ),
    24: ("A failure after the acknowledgement changes the ensemble", (f"{_WRITER}::test_failure_after_the_entry*",)),
    25: (
        "On a fence, recovery or close the writer stops",
        (f"{_WRITER}::test_refusal_ends_the_writer*", f"{_WRITER}::test_lost_compare_and_set_against_a_recovery*"),
    ),
    26: ("64-bit modulo for write sets", (f"{_QUORUM}::test_write_set_is_round_robin*",)),
    27: (
        "DEFERRED_SYNC: forced before the close, no ensemble change, V3 only",
        (
            "tests/interop/test_our_v3.py::test_relaxed_durability*",
            "tests/net/test_v3_channel.py::test_deferred_adds_go_by_v3*",
            "tests/core/test_relaxed.py::test_lost_bookie_is_left_out*",
        ),
    ),
    28: ("`length` is informative", (f"{_TRAPS}::test_trap_28_*",)),
    29: (
        "Short batch answers are normal",
        (f"{_BOOKIE}::test_batch_read_stops*", f"{_TRAPS}::test_trap_29_*"),
    ),
    30: (
        "A fragment that is not the last may end beyond the known LAC",
        (
            "tests/replication/test_repair.py::test_an_open_ledger_adds_entries_only_to_its_last_fragment",
            f"{_TRAPS}::test_trap_30_*",
        ),
    ),
    31: (
        "Version 3 is header, varint and protobuf; a ledger keeps its version",
        (f"{_FORMATS}::test_version_3*", f"{_FORMATS}::test_version_1*"),
    ),
    32: ("cToken makes create idempotent", (f"{_LEDGERS}::test_lost_connection_at_any_write*",)),
    33: ("BookieServiceInfo's fields 6 and 7; empty is the id", (f"{_FORMATS}::test_registration_is_read*",)),
    34: (
        "Nodes that count by existing; text and binary ones",
        (f"{_LIST}::test_nodes_are_apaches*", f"{_LIST}::test_switches*", f"{_LEDGERS}::test_generated_ids*"),
    ),
    35: (
        "LAYOUT may be missing, `readonly` hold data; empty parents go with a ledger",
        (
            f"{_TRAPS}::test_trap_35_*",
            "tests/metadata/test_bookies.py::test_empty_root_and_missing_layout*",
            f"{_LEDGERS}::test_ids_of_both_sizes*",
        ),
    ),
    36: (
        "Text is escaped as protobuf does",
        (f"{_LIST}::test_text_is_escaped*", f"{_FORMATS}::test_cookie_of_apaches_example*"),
    ),
    37: (
        "Passwords are in clear in the metadata, and nowhere else",
        (
            f"{_BOTH}::test_items_4_5_both_show*",
            f"{_BOOKIE}::test_x04_*",
            "tests/bookie/test_dump.py::test_journal_shows*",
        ),
    ),
    38: ("-25 for a deleted ledger", (f"{_BOTH}::test_items_4_5_deleted_by_one*",)),
}
"""Number -> what it is, and the tests, with `*` for the rest of a name."""


def patterns() -> Iterator[str]:
    """Yield everything that the table names."""
    for _, tests in TRAPS.values():
        yield from tests


def table() -> list[str]:
    """Return the table's lines."""
    lines = [
        "## Traps",
        "",
        "Mistakes that implementations of the protocol easily make, each with the tests that find it.",
        "",
        "| Trap | | Tests |",
        "|---|---|---|",
    ]
    for number, (what, tests) in TRAPS.items():
        lines.append(f"| {number} | {what} | {', '.join(f'`{test}`' for test in tests)} |")
    return lines
