"""What a test has logged."""

from __future__ import annotations

from logging import LogRecord

import pytest


def logged(caplog: pytest.LogCaptureFixture) -> list[LogRecord]:
    """Return the records of a test, without what asyncio says of tasks that are collected.

    They may be another test's: garbage is collected at any time.
    """
    return [
        record
        for record in caplog.records
        if record.name != "asyncio" or "was never retrieved" not in record.getMessage()
    ]
