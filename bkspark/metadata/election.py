"""The auditor's election among all autorecovery processes, with Apache's nodes.

    underreplication/auditorelection                 text, AuditorVoteFormat: the auditor, written when it is elected
    underreplication/auditorelection/V_nnnnnnnnnn    ephemeral, sequential; AuditorVoteFormat of a candidate

The candidate with the smallest number is the auditor, until its session ends. Numbers are int32 and are compared as
such. A session has one candidate: every vote of the session is its own, also if the answer that created it was lost.
"""

from __future__ import annotations

import contextlib
import re

from google.protobuf import text_format

from bkspark.errors import NoSuchNode
from bkspark.metadata import paths
from bkspark.metadata.dataformats_pb2 import AuditorVoteFormat
from bkspark.metadata.tree import Callback, Tree
from bkspark.metadata.uri import MetadataUri

UNKNOWN = "unknown"
"""The id of an auditor whose vote cannot be read. There is one: its number decides, and not its text."""
_VOTE = "V_"
_NAME = re.compile(rf"{_VOTE}-?[0-9]{{1,10}}")
"""A vote's name; ZooKeeper's sequence numbers are 32-bit ones."""


class AuditorElection:
    """One candidate. `stand` enters it; `is_elected` returns the present state in the store."""

    def __init__(self, tree: Tree, uri: MetadataUri, candidate: str) -> None:
        self._tree = tree
        self._root = f"{uri.root}/{paths.UNDERREPLICATION}/auditorelection"
        self._text = text_format.MessageToString(AuditorVoteFormat(bookieId=candidate)).encode()
        self._vote: str | None = None
        """The name of our vote; None before `stand`."""
        self._session = 0
        """The session that created our vote; 0 before `stand`."""
        self._is_announced = False
        """Whether our id was written to the election's node as that of the auditor. Cleared by `stand`."""

    async def stand(self) -> None:
        """Become a candidate in this session, once. Raises MetadataError."""
        if self._vote is not None and self._session == self._tree.session_id:
            return
        self._is_announced = False
        self._session = self._tree.session_id
        path, _ = await self._tree.create(
            f"{self._root}/{_VOTE}", self._text, ephemeral=True, sequential=True, make_parents=True
        )
        self._vote = path.rpartition("/")[2]

    async def is_elected(self) -> bool:
        """Return whether this candidate is the auditor; write it to the store the first time.

        If the session has ended since `stand`, it is not a candidate: False, until `stand` is called again.
        """
        if self._vote is None or self._session != self._tree.session_id:
            return False
        votes = await self._votes()
        if not votes or (votes[0] != self._vote and not await self._is_ours(votes[0])):
            return False
        if not self._is_announced:
            await self._tree.set(self._root, self._text, -1)
            self._is_announced = True
        return True

    async def _is_ours(self, vote: str) -> bool:
        """Whether a vote also belongs to this session: it was created, but the answer was lost."""
        stat = await self._tree.exists(f"{self._root}/{vote}")
        return stat is not None and stat.session_owner == self._session

    async def watch(self, callback: Callback) -> Callback:
        """Call `callback()` when candidates came or went; return what ends that. `stand` comes first."""
        return await self._tree.watch_children(self._root, callback)

    async def auditor(self) -> str | None:
        """Return the id of the auditor, UNKNOWN if its vote does not say it; None: there is no auditor.

        Raises:
            MetadataError: the store failed.
        """
        for vote in (await self._votes())[:1]:
            with contextlib.suppress(NoSuchNode):
                data, _ = await self._tree.get(f"{self._root}/{vote}")
                return decode_vote(data)
        return None

    async def _votes(self) -> list[str]:
        try:
            names = await self._tree.children(self._root)
        except NoSuchNode:
            return []
        return sorted((name for name in names if is_vote(name)), key=lambda name: int(name[len(_VOTE) :]))


def is_vote(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def decode_vote(data: bytes) -> str:
    """Return the candidate of a vote; `UNKNOWN` if the vote cannot be read."""
    try:
        # A later peer may add fields.
        return text_format.Parse(data.decode(), AuditorVoteFormat(), allow_unknown_field=True).bookieId or UNKNOWN
    except (ValueError, text_format.ParseError):
        return UNKNOWN
