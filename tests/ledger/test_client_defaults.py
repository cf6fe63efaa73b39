"""What a client does if nothing is configured: times and limits that users rely on without setting them."""

from __future__ import annotations

from bkspark.core.probing import TRIAL_BYTES_MAX
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.tail import TailLimits
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger import advanced, fanout, link, patience, range_reader, replica_copies, replica_reads, writer_run
from bkspark.ledger.bookies import PlacementOptions
from bkspark.ledger.writer import PIECE_BYTES_MAX, PIECE_ENTRIES_MAX
from bkspark.log import log
from bkspark.log.writer import LedgerOptions, RollLimits
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.net.pool import AVOID_FAILED_S, NetOptions
from bkspark.net.responses import SINGLE_READS_MAX
from bkspark.wire import v2
from bkspark.wire.digest import master_key

APACHES_QUEUE_ENTRIES = 10_000
"""maxPendingAddRequestsPerThread of an Apache bookie: it refuses further adds."""
MIB = 1 << 20


def test_times_and_counts_are_those_of_apaches_client() -> None:
    net, writer, placement = NetOptions(), WriterOptions(), PlacementOptions()
    assert (net.read_timeout_s, writer.add_timeout_s) == (5.0, 5.0)
    assert (writer.explicit_lac_interval_s, writer.delay_ensemble_change) == (0.0, False)
    assert (placement.min_racks_per_write_quorum, placement.quarantine_s) == (2, 1800.0)
    assert ZooKeeperOptions().timeout_s == 10.0


def test_a_slow_bookie_of_apaches_is_never_sent_more_than_it_queues() -> None:
    assert WriterOptions().lag_entries_max + PIECE_ENTRIES_MAX < APACHES_QUEUE_ENTRIES


def test_a_writer_holds_at_most_80_mib() -> None:
    options = WriterOptions()
    assert options.pending_bytes_max + options.lag_bytes_max == 80 * MIB
    assert options.pending_bytes_max // 8 >= PIECE_BYTES_MAX, "a piece is a small part of what may be in flight"
    assert options.lag_bytes_max // 8 >= TRIAL_BYTES_MAX


def test_a_slow_bookie_is_left_out_before_it_is_replaced_and_replaced_before_callers_give_up() -> None:
    options = WriterOptions()
    assert options.hold_back_s_max < options.slow_lag_s <= options.add_timeout_s < options.close_timeout_s
    assert options.close_timeout_s <= options.force_timeout_s
    assert options.slow_lag_entries <= options.lag_entries_max // 2
    assert options.slow_lag_bytes <= options.lag_bytes_max // 2


def test_pauses_begin_short_and_stay_below_the_time_out() -> None:
    options = WriterOptions()
    assert options.refusal_pause_s_min <= 0.01
    assert options.refusal_pause_s_max <= 1.0 <= options.probe_pause_s_min
    assert options.replacement_retry_s <= 1.0
    assert options.trial_s <= options.probe_pause_s_max <= 10.0
    assert options.ensemble_change_delay_s_max <= options.close_timeout_s


def test_a_bookie_is_avoided_after_three_failures_in_a_minute() -> None:
    assert (PlacementOptions().quarantine_failures, PlacementOptions().quarantine_window_s) == (3, 60.0)


def test_a_read_is_sent_to_another_bookie_before_it_times_out() -> None:
    net = NetOptions()
    assert net.speculative_read_s <= 1.0 < net.read_timeout_s
    assert net.connect_timeout_s <= net.read_timeout_s


def test_a_follower_sees_a_change_within_seconds_and_bears_a_minute_of_outage() -> None:
    limits, second = TailLimits(), 1_000_000_000
    assert limits.poll_ns <= 5 * second
    assert limits.look_ns <= 5 * second
    assert limits.pause_ns_min <= limits.pause_ns_max <= second
    assert limits.retry_ns <= 10 * second
    assert limits.patience_ns == 60 * second


def test_a_writer_bears_a_minute_without_its_metadata_store_as_a_follower_does() -> None:
    assert writer_run.STORE_AWAY_S == patience.PATIENCE_S == 60.0


def test_a_writer_looks_for_what_is_late_and_asks_again_several_times_a_second() -> None:
    for pause_s in (
        writer_run.TICK_S,
        fanout.CONFIRM_PAUSE_S,
        link.FORCE_PAUSE_S,
        replica_copies.REFUSED_PAUSE_S,
        patience.PAUSE_S_MIN,
    ):
        assert 0.01 <= pause_s <= 0.25
    assert patience.PAUSE_S_MAX == 1.0


def test_a_close_waits_two_seconds_for_a_bookie_that_cannot_be_connected_to() -> None:
    assert fanout.DRAIN_S == 2.0 < WriterOptions().close_timeout_s


def test_a_bookie_that_cannot_be_reached_is_asked_last_for_ten_seconds() -> None:
    assert AVOID_FAILED_S == 10.0


def test_a_reader_holds_at_most_8_mib_ahead_of_its_caller() -> None:
    held = range_reader.READ_AHEAD_SPANS * range_reader.SPAN_EXCESS * range_reader.BATCH_BYTES
    assert held == 8 * MIB
    assert range_reader.SPAN_ENTRIES_FIRST <= range_reader.SPAN_ENTRIES_MAX == 65_536
    assert range_reader.SCAN_BYTES_MIN == MIB // 4


def test_requests_for_single_entries_fit_the_buffers_of_sockets() -> None:
    """Both sides would wait for each other if the requests filled the buffers, and the answers, too."""
    request_bytes = 4 + v2.READ_BYTES + len(master_key(b""))
    assert SINGLE_READS_MAX * request_bytes <= MIB // 4
    assert range_reader.SINGLES_FIRST <= range_reader.SINGLES_MAX <= SINGLE_READS_MAX
    assert replica_reads.SINGLES_MAX <= replica_reads.STRIPED_SINGLES_MAX <= SINGLE_READS_MAX
    assert replica_reads.SINGLES_BYTES == MIB // 2


def test_what_waits_above_a_gap_has_at_most_65_536_ids_and_64_mib() -> None:
    assert (advanced.AHEAD_ENTRIES_MAX, advanced.AHEAD_BYTES_MAX) == (65_536, 64 * MIB)


def test_a_copy_fails_when_its_bookie_acknowledges_nothing_for_half_a_minute() -> None:
    assert (replica_copies.ACK_TIMEOUT_S, replica_copies.PIECES_IN_FLIGHT_MAX) == (30.0, 4)


def test_acknowledged_entries_of_relaxed_durability_are_synced_within_a_second() -> None:
    relaxed = RelaxedDurability()
    assert relaxed.force_interval_s == 1.0
    assert relaxed.unsynced_bytes_max <= 128 * MIB
    assert not relaxed.striped
    assert not relaxed.changes_ensemble


def test_a_log_keeps_copies_of_each_entry_on_several_bookies() -> None:
    options = LedgerOptions()
    assert options.ensemble >= options.write_quorum >= options.ack_quorum >= 2


def test_a_ledger_of_a_log_ends_at_a_gibibyte() -> None:
    assert RollLimits().roll_bytes == 1024 * MIB


def test_ledgers_of_a_dead_job_are_kept_for_a_day_and_a_silent_reader_for_a_week() -> None:
    assert log.VACUUM_AGE_S == 86_400
    assert log.CONSUMER_EXPIRY_S == 7 * 86_400
