"""What a review has to say about one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. ``line`` counts from 1."""

    kind: str
    severity: Severity
    line: int
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Finding:
        """Read what ``to_dict`` wrote. An unknown severity is a `ValueError`."""
        if values["severity"] not in SEVERITIES:
            raise ValueError(f"severity: {values['severity']!r} is none of {SEVERITIES}")
        return cls(values["kind"], values["severity"], int(values["line"]), values["message"])
