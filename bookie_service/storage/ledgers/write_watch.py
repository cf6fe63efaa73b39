"""Which ledgers are written while garbage collection proves that ledgers are deleted.

A ledger that is written after the proofs began may have been created again with the id of the deleted one, so it is not
dropped. Ledgers are noted when their flush begins. Before that they have something to flush, and are not dropped
either.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class WriteWatch:
    """The ledgers of the flushes that began since `begin`. Changed by the event loop; `unwritten` is for any thread."""

    def __init__(self) -> None:
        self._written: set[int] | None = None
        """The ledgers; None: they are not noted."""

    def begin(self) -> None:
        self._written = set()

    def end(self) -> None:
        """Forget the ledgers: all of them count as unwritten."""
        self._written = None

    def note(self, *ledger_ids: Collection[int]) -> None:
        if self._written is not None:
            self._written.update(*ledger_ids)

    def unwritten(self, ledger_ids: Sequence[int]) -> list[int]:
        """Return those of the ledgers that were not written."""
        written = self._written or ()
        return [each for each in ledger_ids if each not in written]
