"""Unpack an archive that came from elsewhere."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path | str) -> None:
    """Unpack into a folder, and nothing beside it, where this Python can: from 3.11.4 on."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)  # noqa: S202 - of a package that is installed, or of this project
