"""What a review has to report about one line."""

from __future__ import annotations

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
        """Return the finding as JSON values; `Finding(**values)` reads them."""
        return asdict(self)
