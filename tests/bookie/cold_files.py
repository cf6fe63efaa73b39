"""Files that are not in the page cache, and who may wait for them."""

from __future__ import annotations

import threading

from bookie_service.storage.io.files import File, LocalFiles


class ColdFiles(LocalFiles):
    """Entry logs are read by fetching threads alone, and only while `disk` is set; all others fail to."""

    def __init__(self) -> None:
        self.disk = threading.Event()
        self.disk.set()
        self.is_cold = True
        self.fetched = 0

    def open(self, path: str) -> File:
        file = super().open(path)
        return _ColdFile(file, self) if path.endswith(".log") else file


class _ColdFile(File):
    __slots__ = ("_files",)

    def __init__(self, inner: File, files: ColdFiles) -> None:
        super().__init__(inner._fd, inner.path)
        self._files = files

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        return 0 if self._files.is_cold else super().read_cached(buffer, offset)

    def read(self, size: int, offset: int) -> bytes:
        if self._files.is_cold:
            name = threading.current_thread().name
            assert name.startswith("fetch-"), f"{name} waits for the disk"
            assert self._files.disk.wait(120)
            self._files.fetched += 1
        return super().read(size, offset)


class ColdIndex(LocalFiles):
    """Index files are read by fetching threads, and then they are in the page cache; `fetched` has their paths.

    Only the header and the last page, which belong to the look-up of a ledger, are read by the event loop.
    """

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.fetched: list[str] = []

    def open(self, path: str) -> File:
        file = super().open(path)
        return _ColdIndexFile(file, self) if path.endswith(".idx") else file


class _ColdIndexFile(File):
    __slots__ = ("_files",)

    def __init__(self, inner: File, files: ColdIndex) -> None:
        super().__init__(inner._fd, inner.path)
        self._files = files

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        return super().read_cached(buffer, offset) if self.path in self._files.fetched else 0

    def read(self, size: int, offset: int) -> bytes:
        if threading.current_thread().name.startswith("fetch-"):
            self._files.fetched.append(self.path)
        else:
            is_of_look_up = offset == 0 or offset >= self.size() - self._files.page_bytes
            assert is_of_look_up, f"{threading.current_thread().name} waits for the disk"
        return super().read(size, offset)
