"""For how long a connection may stay silent, unfinished or unproved."""

from __future__ import annotations

from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.deadlines import NEVER, Deadlines

OPTIONS = ConnectionOptions(stalled_s_max=10.0, frame_s_max=20.0)


def test_only_a_peer_that_leaves_replies_unread_is_stalled() -> None:
    deadlines = Deadlines(OPTIONS, 100.0)
    deadlines.progress_at = 100.0
    assert deadlines.overdue(110.0, 5, 0) == ""
    assert deadlines.overdue(110.1, 0, 0) == ""
    assert "none of 5 bytes of replies for 10 s" in deadlines.overdue(110.1, 5, 0)


def test_frame_counts_from_its_beginning_and_again_when_there_was_no_room() -> None:
    deadlines = Deadlines(OPTIONS, 0.0)
    deadlines.begin_frame(0.0, is_new=False)
    deadlines.begin_frame(15.0, is_new=False)
    assert "unfinished after 20 s" in deadlines.overdue(20.1, 0, 7)
    deadlines.begin_frame(15.0, is_new=True)
    assert deadlines.overdue(20.1, 0, 7) == ""
    deadlines.frame_since = NEVER
    assert deadlines.overdue(1000.0, 0, 7) == ""
    deadlines.begin_frame(1000.0, is_new=False)
    assert deadlines.overdue(1020.0, 0, 7) == ""


def test_handshake_keeps_its_earliest_deadline_and_authentication_begins_again() -> None:
    deadlines = Deadlines(OPTIONS, 0.0)
    deadlines.expect_tls(0.0, 10.0)
    deadlines.expect_tls(5.0, 10.0)
    deadlines.expect_authentication(0.0, 11.0)
    assert deadlines.overdue(10.0, 0, 0) == ""
    assert "TLS handshake is not complete after 10 s" in deadlines.overdue(10.1, 0, 0)
    deadlines.end_handshake()
    deadlines.expect_authentication(10.1, 11.0)
    assert deadlines.overdue(21.0, 0, 0) == ""
    assert "not authenticated after 11 s" in deadlines.overdue(21.2, 0, 0)
    deadlines.end_authentication()
    assert deadlines.overdue(1000.0, 0, 0) == ""


def test_connection_is_idle_from_the_first_look_that_finds_nothing_new() -> None:
    deadlines = Deadlines(OPTIONS, 0.0)
    assert deadlines.idle_s(3.0, is_busy=False) == 3.0
    deadlines.receptions += 1
    assert deadlines.idle_s(4.0, is_busy=False) == 0.0
    assert deadlines.idle_s(9.0, is_busy=False) == 5.0
    assert deadlines.idle_s(10.0, is_busy=True) == 0.0
    assert deadlines.idle_s(12.0, is_busy=False) == 2.0
