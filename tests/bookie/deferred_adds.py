"""The fields of V3 adds that are deferred, or bypass the journal."""

from __future__ import annotations

from bkspark.wire import v3

DEFERRED = {"writeFlags": v3.DEFERRED_SYNC}

BYPASSING = {"writeFlags": v3.DEFERRED_SYNC, "bypassJournal": True}
