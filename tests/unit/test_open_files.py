"""The limit of open files: raised as far as the system lets it."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from redis_state.cli.servers.open_files import MOST_FILES, raise_open_files


@pytest.fixture
def hard() -> Iterator[int]:
    """Return the hard limit; put the soft one back behind the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_to_the_hard_one(hard: int) -> None:
    reachable = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable // 2, hard))
    # Safe to repeat.
    for _ in range(2):
        assert raise_open_files() == reachable
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (reachable, hard)
