"""What functions of a host raise where nobody is left to answer: in a stream that is open."""

from __future__ import annotations

import logging
import traceback

log: logging.Logger = logging.getLogger(__name__)


def log_failure(what: str, error: Exception) -> None:
    """Log the class and the frames of an error. Its text may hold a payload, and stays here."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s: %s\n%s", what, type(error).__name__, frames)
