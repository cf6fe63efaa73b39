"""Files whose entry logs are never in the page cache, and who may wait for them."""

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
