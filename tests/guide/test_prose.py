"""The prose keeps the rules of `docs/glossary.md`."""

from __future__ import annotations

import pytest

from tests.guide import prose

if not (prose.ROOT / "redis_state").is_dir():
    pytest.skip("prose is checked in a checkout", allow_module_level=True)


def _findings(source: str, name: str) -> list[str]:
    path = prose.ROOT / name
    return [finding.rule for finding in prose.findings(path, source)]


def test_every_file_keeps_the_rules() -> None:
    found = [str(finding) for path in prose.files() for finding in prose.findings(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "It was told so.",
        "The task\ngoes on.",
        "- When the task is over, it ends.",
        "| cell | whoever asks |",
        "A [link that somebody reads](x.md).",
    ],
)
def test_a_retired_word_is_found(text: str) -> None:
    assert _findings(text, "docs/x.md") == ["retired word"]


@pytest.mark.parametrize(
    "text",
    [
        "Run `tell()` over TLS.",
        "```python\nwhoever = told\n```",
        "    told whoever\n",
        "<!-- somebody said -->",
    ],
)
def test_code_is_no_prose(text: str) -> None:
    assert _findings(text, "docs/x.md") == []


@pytest.mark.parametrize(
    "source",
    [
        "def _tell_all(): ...",
        "async def is_over(): ...",
        "def put(self, said): ...",
        "def put(*, asked_us): ...",
        "class TaskAsked: ...",
        "class Box:\n    def goes_on(self): ...",
        "class Ticket: ...",
    ],
)
def test_a_retired_word_in_a_name_is_found(source: str) -> None:
    assert _findings(source, "redis_state/x.py") == ["retired identifier"]
    assert _findings("", "redis_state/telling.py") == ["retired identifier"]


def test_a_file_is_named_by_what_it_holds() -> None:
    assert _findings("", "redis_state/family.py") == ["vague file name"]
    assert _findings("", "redis_state/task_family.py") == ["vague file name"]
    assert _findings("def line(family): ...", "redis_state/outline.py") == []


def test_a_name_may_have_a_retired_word_as_a_part_of_a_longer_one() -> None:
    kept = "def overtake(*, foretold, unsaid): ..."
    assert _findings(kept, "redis_state/satellites.py") == []


def test_a_long_sentence_is_found_across_lines() -> None:
    words = "word " * prose.MAX_WORDS
    assert _findings(f"{words}.\n", "docs/x.md") == []
    assert _findings(f"{words}\nmore.\n", "docs/x.md") == ["long sentence"]
    assert _findings(f"Short. {words}. Short.\n", "docs/x.md") == []


def test_a_docstring_begins_with_a_verb() -> None:
    bad = 'def read() -> None:\n    """Tell it."""\n'
    assert set(_findings(bad, "redis_state/x.py")) == {"first word", "retired word"}
    good = 'def read() -> None:\n    """Return it.\n\n        told whoever\n\n    End.\n    """\n'
    assert _findings(good, "redis_state/x.py") == []
