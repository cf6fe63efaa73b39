"""A replicated state machine on a log, as HDFS keeps its edit log: one active process, others that take over.

python examples/edit_log.py zk://127.0.0.1:2181/ledgers      # `bkspark local --bookies 3` prints the URI

The log is the state: the active process appends an edit and applies it once it is acknowledged; a process that takes
over fences the one before, replays the log, and continues. The process that was overtaken gets an error at its next
append, so two never change the state at the same time. A checkpoint allows the log's older entries to be truncated.
"""

import json
import sys

from bkspark.blocking import Client
from bkspark.errors import LedgerFenced
from bkspark.log import Position


class Accounts:
    """Balances by name: a state that edits change."""

    def __init__(self) -> None:
        self.balances: dict[str, int] = {}

    def apply(self, edit: bytes) -> None:
        change = json.loads(edit)
        name = change["account"]
        self.balances[name] = self.balances.get(name, 0) + change["amount"]


class Active:
    """The only process that changes the accounts. Opening it overtakes the process that was active before."""

    def __init__(self, client: Client, log: str, checkpoint: tuple[dict[str, int], Position] | None = None) -> None:
        self._log = client.log(log)
        # First the log, then its content: from here on no other process can append, so nothing is missed.
        self._writer = self._log.open_for_writing()
        self.accounts = Accounts()
        start: Position | str = "earliest"
        if checkpoint is not None:
            self.accounts.balances, start = dict(checkpoint[0]), checkpoint[1]
        for batch in self._log.read(start=start):
            for edit in batch:
                self.accounts.apply(edit)

    def change(self, account: str, amount: int) -> None:
        """Change a balance, durably. Raises LedgerFenced when another process has taken over."""
        edit = json.dumps({"account": account, "amount": amount}).encode()
        self._writer.append(edit)
        self.accounts.apply(edit)

    def checkpoint(self) -> tuple[dict[str, int], Position]:
        """Return the state and its position in the log, and truncate the earlier edits."""
        self._writer.roll()
        end = self._log.latest()
        self._log.truncate(end)
        return dict(self.accounts.balances), end


def main(uri: str, log: str = "edits") -> None:
    with Client(uri) as one, Client(uri) as two:
        first = Active(one, log)
        first.change("alice", 10)
        first.change("bob", 5)
        second = Active(two, log)  # the first one has gone silent, or so it seems
        try:
            first.change("alice", 100)
        except LedgerFenced:
            print("the first process was overtaken; its edit is not in the log")
        second.change("alice", -3)
        state = second.checkpoint()
        second.change("bob", 1)
        third = Active(one, log, state)
        print("accounts:", third.accounts.balances)


if __name__ == "__main__":
    main(sys.argv[1])
