"""The reference pages are those that the code gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
pytest.importorskip("typer", reason="needs the cli extra")

from tests.guide import reference


@pytest.mark.parametrize(("name", "build"), reference.pages().items())
def test_a_reference_page_is_current(name: str, build: Callable[[], str]) -> None:
    page = reference.FOLDER / name
    assert page.read_text(encoding="utf-8") == reference.write(build), (
        "run: python -m tests.guide.reference"
    )


def test_every_reference_page_is_in_the_folder() -> None:
    written = {path.name for path in reference.FOLDER.glob("*.md")}
    assert written == {*reference.pages(), "api.md", "index.md"}
