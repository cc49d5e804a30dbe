"""Files that only their owner may read, as they hold payloads or keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OF_ITS_OWNER = 0o600


def private(path: str, flags: int) -> int:
    """Open a file for its owner alone: an ``opener`` of `open`.

    Others lose their rights on one that is there already, before anything is written to it. What is
    no regular file, such as a pipe or a terminal, keeps its rights. Errors: OSError, also if the
    file is another user's.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC, _OF_ITS_OWNER)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            if stat.S_IMODE(found.st_mode) != _OF_ITS_OWNER:
                Path(path).chmod(_OF_ITS_OWNER)
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
