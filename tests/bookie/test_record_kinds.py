"""Each kind of journal record is known to those that read journals: the start of a bookie, and `bkspark dump`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_service.admin.inspection.findings import Damage
from bookie_service.admin.inspection.journal import read_journal
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.journal.journal import JournalOptions, Record
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.opening import open_storage
from tests.bookie.journals import FILES, open_journal, path_of


@pytest.mark.parametrize("kind", [kind for kind in RecordKind if kind is not RecordKind.FOLLOWED])
def test_record_of_each_kind_is_replayed_and_shown(tmp_path: Path, kind: RecordKind) -> None:
    """Without contents: those of each kind have tests of their own. FOLLOWED ends a file, and is never applied."""
    current = tmp_path / "journal" / "current"
    current.mkdir(parents=True)
    journal = open_journal(current)
    journal.append([Record.of(kind, 0, b"")])
    journal.close()
    found = list(read_journal(FILES, str(path_of(current)), None))
    assert [finding for finding in found if isinstance(finding, Damage)] == []
    storage = open_storage(FILES, [str(current.parent)], [str(tmp_path / "ledgers")], StoreOptions(), JournalOptions())
    assert storage.replayed == int(kind != RecordKind.PADDING)
    storage.store.close()
