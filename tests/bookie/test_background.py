"""Work on other threads pauses again and again, so that the event loop gets the interpreter."""

from __future__ import annotations

from bookie_service.storage.io.background import with_pauses


def test_a_loop_pauses_after_each_millisecond_of_work_and_leaves_no_item_out() -> None:
    taken, paused_after = list[int](), list[list[int]]()

    def now_s() -> float:
        """Each item takes 0.4 ms, and each pause a second, which is not work."""
        return 0.0004 * len(taken) + len(paused_after)

    def pause(seconds: float) -> None:
        assert 0 < seconds < 0.001
        paused_after.append([*taken])

    for item in with_pauses(range(10), clock=now_s, pause=pause):
        taken.append(item)
    assert taken == [*range(10)]
    assert [len(each) for each in paused_after] == [3, 6, 9]
