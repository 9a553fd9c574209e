"""Large blocks go back to the system when they are freed.

glibc takes blocks of 128 KiB and more from the system one by one and gives each back, but raises that limit to the size of
whatever it has given back, up to 32 MiB: after the first large upload all later ones come from its heaps, which keep what
lies below anything that is still in use. 200 uploads of 10 MiB left 109 MB resident in the place of 70, and took 20 MB
more at their height. A limit that was set stays (mallopt(3), M_MMAP_THRESHOLD).
"""

import ctypes

__all__ = ["give_large_blocks_back"]

_M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""
LARGE_BYTES = 128 * 1024


def give_large_blocks_back() -> None:
    """With another C library than glibc nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
