"""The environment of this process: variables that are meant for a setting, and name none."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state.doctor.finding import Finding, Verdict
from redis_state.settings import misspelt_variables

_PLACE = "the environment"


def environment_findings() -> Iterator[Finding]:
    """Look for variables whose names are nearly those of settings."""
    for variable, setting in misspelt_variables().items():
        yield Finding(
            _PLACE,
            "variables",
            Verdict.FINDING,
            f"{variable} names no setting",
            "it is ignored, and what it should set has its default",
            f"write {setting}, or give a variable of another program another name",
        )
