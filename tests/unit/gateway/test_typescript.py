"""The types of the TypeScript client are those of the gateway. `make test-typescript` does more."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

TOOL = Path(__file__).parents[3] / "tools" / "typescript.py"


def test_the_types_were_written_from_the_description_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("typescript", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    if not tool.SCHEMA.exists():
        pytest.skip("the clients are in the checkout only")
    with tool.SCHEMA.open(encoding="utf-8") as schema:
        assert next(schema) == tool.first_line(), "run tools/typescript.py"
