"""What an operation, a page or a function of a host raises: an HTTP error, or a line of the log."""

from __future__ import annotations

import logging
import traceback

from redis_state.errors import RedisStateError
from redis_state.gateway.answers import HttpProblem, problem_of

log: logging.Logger = logging.getLogger(__name__)


def log_failure(what: str, error: Exception) -> None:
    """Log the class and the frames of an error. Its text may hold a payload, and stays here."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s: %s\n%s", what, type(error).__name__, frames)


def problem_for(what: str, error: Exception, *, failed: str = "this gateway") -> HttpProblem:
    """Make the HTTP error of whatever was raised. What nobody expects is logged."""
    match error:
        case HttpProblem():
            return error
        case RedisStateError():
            return problem_of(error)
        case TimeoutError():
            return HttpProblem(504, "timeout", "this took too long")
        case _:
            log_failure(what, error)
            return HttpProblem(500, "internal", f"{failed} has failed")
