"""What commands print, as tests look at it."""

from __future__ import annotations

from _pytest.capture import CaptureResult


def assert_one_line(output: CaptureResult[str], *names: str) -> None:
    """Assert that nothing but one line of error came, and that it holds every one of `names`."""
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1, output.err
    for name in names:
        assert name in lines[0]
