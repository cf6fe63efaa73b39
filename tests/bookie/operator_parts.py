"""Parts of a bookie's operator: a registration that waits, and what the audit log says."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.metadata.uri import MetadataUri
from bookie_service.operation.changes import Changes

URI = MetadataUri.parse("zk://h/ledgers")


def _end_never(error: BaseException) -> None:
    raise AssertionError("an error that may have left state half changed") from error


STEADY = Changes(_end_never)
"""The changes of a process that no error of a test may end."""


class Registration:
    """A registration that counts how often a command has waited for the cluster."""

    is_registered = True
    waits = 0

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        """Set while the cluster answers."""
        self.answers.set()

    async def settled(self) -> None:
        self.waits += 1
        await self.answers.wait()


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bookie_service.audit"]
