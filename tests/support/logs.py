"""What a test has logged."""

from __future__ import annotations

from logging import LogRecord


def is_of_the_test(record: LogRecord) -> bool:
    """Return whether a record may be the test's: not what asyncio says of tasks it collects.

    They may be another test's: garbage is collected at any time.
    """
    return record.name != "asyncio" or "was never retrieved" not in record.getMessage()
