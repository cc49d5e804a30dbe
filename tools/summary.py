"""Add up the test reports of all stages of .ci/run, and print the counts on one line.

    python tools/summary.py FOLDER SKIPPED_STAGES [FAILED_STAGE...]

FOLDER holds the reports, <stage>.xml. A stage that failed without a failed test counts as one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET


def main(folder: Path, skipped: int, failed_stages: Iterable[str]) -> None:
    """Print how many tests passed, failed and were skipped."""
    passed = failed = 0
    with_failures: set[str] = set()
    for report in folder.glob("*.xml"):
        try:
            runs = list(ET.parse(report).iter("testsuite"))  # noqa: S314 - pytest wrote it
        except ET.ParseError:
            continue
        for run in runs:
            tests, bad, left_out = (
                sum(int(run.get(key, 0)) for key in keys)
                for keys in (("tests",), ("failures", "errors"), ("skipped",))
            )
            passed += max(0, tests - bad - left_out)
            failed += bad
            skipped += left_out
            if bad:
                with_failures.add(report.stem)
    failed += sum(name not in with_failures for name in failed_stages)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
