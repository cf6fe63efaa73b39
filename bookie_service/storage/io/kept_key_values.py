"""A key-value store that keeps in memory what its disk does not take now.

A store writes its memory out from time to time. If its disk has no space, or is late, the store must not get more than
its memory takes. What it does not get stays here, where reads find it, until `give` finds that the store takes it.
Removals stay here, too: then whatever was removed can be freed elsewhere, which may make space.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence

from bookie_service.formats.kept_changes import KeptChanges
from bookie_service.storage.io.files import is_out_of_space
from bookie_service.storage.io.key_values import Changes, KeyValues

_PUTS_PER_WRITE = 1024
_GROUPS_AT_ONCE = 512
"""How many groups `saved` copies before look-ups that wait go on: about 1 ms."""
_ITEM_BYTES, _GROUP_BYTES, _REMOVAL_BYTES = 128, 288, 300
"""What a key with its value, a group and a removal take in memory in addition to the bytes of keys and values."""


class KeptKeyValues:
    """A `KeyValues` over a store. Other threads may call `give`, `give_rest` and `sync`, one at a time; any may read or
    write.

    Keys that begin with the same `group_bytes` bytes form a group. A look-up within one group costs what the group has,
    others cost as much as everything that is kept. Only whole groups can be removed.
    """

    def __init__(self, store: KeyValues, path: str, bytes_max: int, group_bytes: int) -> None:
        """`path`: for messages. `bytes_max`: at most this much memory is used for what is kept, and the last
        call of `write` more."""
        self._store = store
        self._path = path
        self._bytes_max = bytes_max
        self._group_bytes = group_bytes
        self._kept: dict[bytes, dict[bytes, bytes]] = {}
        """Keys and values that the store lacks, by group. They count before those in the store."""
        self._kept_bytes = 0
        """How much memory `_kept` and `_removed` take, in bytes."""
        self._removed: dict[bytes, tuple[tuple[bytes, bytes], object]] = {}
        """Groups that the store still has, by their beginning, though they were removed: the range of their keys, and
        an object for each removal. What `_kept` has of a group came after that."""
        self._number = 0
        """The number of the last `give_rest` that may have begun."""
        self.is_saved = False
        """Whether what `saved` returned last counts if the process ends: removals are kept then."""
        self._touched: set[bytes] | None = None
        """Groups of which something was kept, or given to the store, since `saved` began to copy; None: it does not
        run. Changed with `_changing` held."""
        self.is_refused = False
        """Whether the store did not take something that is kept. Removals that wait for the end of what is saved, and
        what comes after them, do not count. Changed with `_changing` held."""
        self.changes = 0
        """How many times `write` and `keep` were called. Incremented with `_changing` held."""
        self._changing = threading.Lock()
        """Held while `_kept` and `_removed` are changed. Only a removal from the store waits for a disk meanwhile, if
        the store does."""

    def begin(self, number: int, saved: KeptChanges | None) -> None:
        """Begin with what the store lacks. `number`: of the last mark that the store may have."""
        self._number = number
        if saved is not None:
            with self._changing:
                self._keep(list(saved.puts.items()), saved.removed)
            self.is_saved = True

    @property
    def keeps_any(self) -> bool:
        """Whether the store lacks something."""
        return bool(self._kept or self._removed)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not self.keeps_any:
            return self._store.get(keys)
        # In this order, because what leaves `_kept` and `_removed` is in the store before.
        found = [self._kept_value(key) for key in keys]
        rows = [row for row, value in enumerate(found) if value is None and self._group(keys[row]) not in self._removed]
        for row, value in zip(rows, self._store.get([keys[row] for row in rows]) if rows else ()):
            found[row] = value
        return found

    def _kept_value(self, key: bytes) -> bytes | None:
        group = self._kept.get(self._group(key))
        return None if group is None else group.get(key)

    def _group(self, key: bytes) -> bytes:
        return key[: self._group_bytes]

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        kept = max(self._kept_in(first, end), default=None)
        while (stored := self._store.last(first, end)) is not None and self._group(stored[0]) in self._removed:
            end = self._group(stored[0])
        return max([each for each in (kept, stored) if each is not None], default=None, key=_key)

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        if not self.keeps_any:
            yield from self._store.keys(first, end)
            return
        kept = sorted(key for key, _ in self._kept_in(first, end))
        before = None
        for key in heapq.merge(kept, self._store_keys(first, end)):
            if key != before:
                yield key
            before = key

    def _store_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        return (key for key in self._store.keys(first, end) if self._group(key) not in self._removed)

    def key_count(self) -> int:
        return self._store.key_count() + len(self._kept)

    def _kept_in(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the kept keys in [first, end) and their values, in any order."""
        if not self._kept:
            return []
        with self._changing:
            # The bytes of a range within one group begin with those of the group.
            group = self._group(first)
            is_within = len(group) == self._group_bytes and end <= _after(group)
            found = (self._kept.get(group, {}),) if is_within else self._kept.values()
            groups = [list(each.items()) for each in found]
        return [item for group in groups for item in group if first <= item[0] < end]

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Write to the store; keep the changes if it has no space, or lacks earlier ones.

        Raises:
            OSError: too much is kept already.
        """
        is_refused = False
        if not self.keeps_any:
            with self._changing:
                self.changes += 1
            with self._changing if removed else contextlib.nullcontext():
                # With the lock, so that a snapshot either has a removal, or keeps it out of the store.
                if not (removed and self.is_saved):
                    try:
                        self._store.write(puts, removed)
                        return
                    except OSError as error:
                        if not is_out_of_space(error):
                            raise
                        is_refused = True
        with self._changing:
            self._keep(puts, removed)
            self.is_refused = self.is_refused or is_refused

    def keep(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Keep changes that the store does not take in memory: first the removals, then the keys and values.

        Raises:
            OSError: too much is kept already.
        """
        with self._changing:
            self._keep(puts, removed)
            self.is_refused = True

    def _keep(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]]) -> None:
        self.changes += 1
        if self._kept_bytes > self._bytes_max:
            self.is_refused = True
            raise OSError(errno.ENOSPC, "the disk of the key-value store takes no more changes", self._path)
        for first, end in removed:
            group = self._group(first)
            assert (first, end <= _after(group)) == (group, True), "only a whole group is removed"
            self._kept_bytes += 0 if group in self._removed else _REMOVAL_BYTES
            # First, because readers do not wait: they must not find what the store has.
            self._removed[group] = (first, end), object()
            self._touch(group)
            if group in self._kept:
                self._kept_bytes -= _GROUP_BYTES + sum(itertools.starmap(_size, self._kept.pop(group).items()))
        for key, value in puts:
            group = self._group(key)
            if group not in self._kept:
                self._kept_bytes += _GROUP_BYTES
                self._kept[group] = {}
            before = self._kept[group].get(key)
            self._kept_bytes += _size(key, value) - (0 if before is None else _size(key, before))
            self._kept[group][key] = value
            self._touch(group)

    def give(self, bytes_max: int) -> bool:
        """Write about `bytes_max` bytes of what is kept to the store, without removals and what came after them; return
        whether something of that is left.

        Raises:
            OSError: as the store's `write`. What it lacks is still kept.
        """
        given = 0
        while (puts := self._some_puts()) and given < bytes_max:
            self._store.write(puts)
            given += sum(len(key) + len(value) for key, value in puts)
            with self._changing:
                for key, value in puts:
                    self._forget(key, value)
        return bool(puts)

    def _some_puts(self) -> list[tuple[bytes, bytes]]:
        with self._changing:
            groups = (items for group, items in self._kept.items() if group not in self._removed)
            return list(itertools.islice((item for items in groups for item in items.items()), _PUTS_PER_WRITE))

    def give_rest(self, number: int, mark: tuple[bytes, bytes]) -> bool:
        """Write a mark to the store in one call with all removals that are kept, and what came after them.

        `number`: the number of the mark. `saved` returns it from then on.

        Return False if `give` must be called again before. Raises OSError as `give`.
        """
        with self._changing:
            if any(group not in self._removed for group in self._kept):
                return False
            self._number = number
            removed = dict(self._removed)
            puts = [item for items in self._kept.values() for item in items.items()]
        self._store.write([*puts, mark], [range_of for range_of, _ in removed.values()])
        with self._changing:
            for group, (_, removal) in removed.items():
                # It may have been removed again, after it had come back.
                if self._removed[group][1] is removal:
                    del self._removed[group]
                    self._kept_bytes -= _REMOVAL_BYTES
            for key, value in puts:
                self._forget(key, value)
            # What is kept now came meanwhile.
            self.is_refused = self.is_refused and self.keeps_any
        return True

    def saved(self) -> tuple[int, list[tuple[bytes, bytes]], dict[bytes, bytes]]:
        """Return what the store may lack after a crash: first ranges that are removed, then keys and values.

        The first result is the number of the last `give_rest` that may have begun before. One with a higher number
        writes all of this. Until `is_saved` is reset, only such a call writes a removal that comes later.
        """
        kept: dict[bytes, dict[bytes, bytes]] = {}
        with self._changing:
            self._touched = set()
            groups_before = list(self._kept)
        for at in range(0, len(groups_before), _GROUPS_AT_ONCE):
            with self._changing:
                self._copy(groups_before[at : at + _GROUPS_AT_ONCE], kept)
        with self._changing:
            self._copy(self._touched, kept)
            self._touched = None
            self.is_saved = True
            number = self._number
            kept_removed = {group: range_of for group, (range_of, _) in self._removed.items()}
            # With the lock, so that the store has no removal that comes later. What it is given meanwhile is in both.
            unsynced = self._store.unsynced()
        groups: dict[bytes, dict[bytes, bytes]] = {}
        removed: dict[bytes, tuple[bytes, bytes]] = {}
        for puts, ranges in unsynced:
            for first, end in ranges:
                removed[self._group(first)] = (first, end)
                groups.pop(self._group(first), None)
            for key, value in puts:
                groups.setdefault(self._group(key), {})[key] = value
        for group, range_of in kept_removed.items():
            removed[group] = range_of
            groups.pop(group, None)
        for group, items in kept.items():
            groups.setdefault(group, {}).update(items)
        return number, list(removed.values()), {key: value for items in groups.values() for key, value in items.items()}

    def _touch(self, group: bytes) -> None:
        if self._touched is not None:
            self._touched.add(group)

    def _copy(self, groups: Iterable[bytes], copies: dict[bytes, dict[bytes, bytes]]) -> None:
        """Copy what is kept of groups. What is not kept is not in the copies either."""
        for group in groups:
            items = self._kept.get(group)
            if items is None:
                copies.pop(group, None)
            else:
                copies[group] = dict(items)

    def _forget(self, key: bytes, value: bytes) -> None:
        """Forget a kept key that the store has now, unless it has another value, or was removed, since it was read."""
        group = self._kept.get(self._group(key), {})
        if group.get(key) is value:
            self._touch(self._group(key))
            self._kept_bytes -= _size(key, value)
            del group[key]
            if not group:
                self._kept_bytes -= _GROUP_BYTES
                del self._kept[self._group(key)]

    def unsynced(self) -> Sequence[Changes]:
        return self._store.unsynced()

    def sync(self) -> None:
        """Make durable what the store has. What is kept is not in the store."""
        self._store.sync()

    def forget_removed(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        self._store.forget_removed(ranges)

    def close(self) -> None:
        self._store.close()


def _after(group: bytes) -> bytes:
    """Return the least bytes, of the same length, after all keys that begin with `group`."""
    return (int.from_bytes(group) + 1).to_bytes(len(group))


def _size(key: bytes, value: bytes) -> int:
    """Return how much memory a key with its value takes, in bytes."""
    return len(key) + len(value) + _ITEM_BYTES


def _key(found: tuple[bytes, bytes]) -> bytes:
    return found[0]
