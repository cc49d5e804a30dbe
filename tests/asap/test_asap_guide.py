"""The guide's example with ASAP's package runs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.asap import real
from tests.support.processes import children

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "snapshots.md"
_EXAMPLE = re.compile(r"<!-- test: runs with ASAP's package -->\n```python\n(.*?)```", re.DOTALL)


def test_the_guides_example_runs_as_it_stands(tmp_path: Path) -> None:
    assert real.server
    (code,) = _EXAMPLE.findall(GUIDE.read_text(encoding="utf-8"))
    program = tmp_path / "example.py"
    program.write_text(code, encoding="utf-8")
    ran = children.run(
        [sys.executable, "-W", "error::ResourceWarning", str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "ResourceWarning" not in ran.stderr
