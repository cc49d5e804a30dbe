"""The sizes of a test: the suite runs the reduced one, and `make test-full` the promised one."""

from __future__ import annotations

from typing import Any

import pytest

# The full size may take so long, also on a busy machine.
_FULL_S = 3600


def sizes(reduced: Any, full: Any) -> list[Any]:
    """List both as parameters of a test; the full one bears the mark of `make test-full`."""
    return [reduced, pytest.param(full, marks=[pytest.mark.full, pytest.mark.timeout(_FULL_S)])]
