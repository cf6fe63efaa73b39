"""Apache's `bookkeeper shell`, a command at a time."""

from __future__ import annotations

from tests.interop.peer import JavaClient


def shell(java: JavaClient, words: str) -> str:
    """Return what a command printed; it must have succeeded."""
    answer = java.call("shell", words=words.split())
    assert answer["exit"] == 0, (words, answer["output"])
    return str(answer["output"])
