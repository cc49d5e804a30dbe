"""Check pyright's report on the installed package: every exported symbol has a known type.

pyright --verifytypes redis_state --ignoreexternal --outputjson > types.json
python tools/verify_types.py types.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# PenguiFlow has no types: a class of ours that extends one of its classes is the only exception.
_THEIRS = {"Type of metaclass unknown", "Type of base class unknown"}
_OURS = 'Type of base class "redis_state.integrations.penguiflow.'


def main(report: Path) -> int:
    """Print the symbols whose types are not fully known; return 1 if there is any."""
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["typeCompleteness"]
    unknown = [symbol["name"] for symbol in found["symbols"] if _is_unknown(symbol)]
    for name in unknown:
        print("type not fully known:", name)
    counts = found["exportedSymbolCounts"]
    print("exported symbols with known types:", counts)
    # Pyright reports success with zero symbols when it does not find the package.
    return int(bool(unknown) or not counts["withKnownType"])


def _is_unknown(symbol: dict[str, Any]) -> bool:
    messages = [diagnostic["message"] for diagnostic in symbol["diagnostics"]]
    return (
        symbol["isExported"]
        and not symbol["isTypeKnown"]
        and any(message not in _THEIRS and not message.startswith(_OURS) for message in messages)
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
