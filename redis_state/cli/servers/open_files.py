"""How many files a server's process may have open: each of its clients is one."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

# Enough for any process. A system may name a billion, or no number at all.
MOST_FILES: Final = 1 << 20
# What macOS allows, where it says that there is no limit.
_FEWER: Final = 10_240


def raise_open_files() -> int | None:
    """Raise the soft limit of open files to the hard one; return what it is now.

    Shells and systemd give 1,024, for programs that use `select`. None on a system without limits.
    """
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (MOST_FILES, _FEWER):
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            break
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return None if soft == resource.RLIM_INFINITY else soft
