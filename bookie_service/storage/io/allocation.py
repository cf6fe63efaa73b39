"""How the process of a bookie takes memory from the system and gives it back: mallopt(3) and prctl(2).

Arrays over all ledgers of a bookie (8 MB for a million ids) come and go while its event loop serves requests. Each
call that takes or gives memory holds the interpreter's lock, so the event loop waits for it:

* Huge pages. numpy asks for them in arrays of 4 MB and more. The kernel clears 2 MB at the first touch of each, which
  took up to 28 ms in a virtual machine whose host gives it memory only then.
* Free memory in malloc's heap. glibc takes larger and larger arrays from its heap, up to 32 MB, after it freed such
  arrays once. Google's protobuf calls malloc_trim once in a while, which gives all free memory of the heap back:
  90 MB took 13 ms.

So the process has no huge pages, and arrays of 4 MB and more are never part of the heap. The figures, with and without,
are in benchmarks/laboratory.md.
"""

from __future__ import annotations

import ctypes

_PR_SET_THP_DISABLE = 41
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ARRAY_BYTES = 4 * 1024 * 1024
"""Larger allocations are mapped, and unmapped at once when they are freed. Buffers of requests are smaller: they stay
in the heap, because the kernel would have to clear their pages each time."""
_FREE_BYTES = 64 * 1024 * 1024
"""malloc keeps this much free memory. Its default for a fixed limit of arrays, 128 KiB, would be given back and taken
again for each request."""


def keep_allocation_short() -> None:
    """Let no allocation or release of memory hold the interpreter's lock for long. Without glibc, or on another system
    than Linux, what the C library lacks stays as it is."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _ARRAY_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
