from __future__ import annotations

from pathlib import Path

import pytest

from redis_state.demo.documents import choose_documents
from redis_state.errors import ConfigError


def write(folder: Path, *names: str, size: int = 10) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * size, encoding="utf-8")


def names(found: list[Path], folder: Path) -> list[str]:
    return [str(path.relative_to(folder.resolve())) for path in found]


def test_given_files_and_folders_are_taken_once_each_in_the_order_given(tmp_path: Path) -> None:
    write(tmp_path, "b.md", "docs/z.md", "docs/a.MD", "docs/note.txt")
    found = choose_documents([tmp_path / "b.md", tmp_path / "docs", tmp_path / "b.md"], tmp_path)
    assert names(found, tmp_path) == ["b.md", "docs/a.MD", "docs/z.md"]


def test_a_given_file_may_have_any_name(tmp_path: Path) -> None:
    write(tmp_path, "notes.txt")
    assert names(choose_documents([tmp_path / "notes.txt"], tmp_path), tmp_path) == ["notes.txt"]


def test_a_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such document: .*nope\.md"):
        choose_documents([tmp_path / "nope.md"], tmp_path)


def test_a_folder_without_documents_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Markdown documents in"):
        choose_documents([tmp_path], tmp_path)
    with pytest.raises(ConfigError, match="no Markdown documents in"):
        choose_documents([], tmp_path)


def test_by_default_the_readme_comes_first_then_the_docs_then_the_longest(tmp_path: Path) -> None:
    write(tmp_path, "README.md", "docs/b.md", "docs/a.md")
    write(tmp_path, "more/long.md", size=500)
    write(tmp_path, "more/longer.md", size=900)
    found = choose_documents([], tmp_path)
    wanted = ["README.md", "docs/a.md", "docs/b.md", "more/longer.md", "more/long.md"]
    assert names(found, tmp_path) == wanted


def test_by_default_there_are_twelve_at_most_and_none_is_empty_or_huge(tmp_path: Path) -> None:
    write(tmp_path, "README.md", *(f"docs/{number:02d}.md" for number in range(20)))
    write(tmp_path, *(f"more/{number:02d}.md" for number in range(9)), size=100)
    write(tmp_path, "more/empty.md", size=0)
    write(tmp_path, "more/huge.md", size=500_000)
    found = names(choose_documents([], tmp_path), tmp_path)
    assert len(found) == 12
    assert "more/empty.md" not in found
    assert "more/huge.md" not in found


def test_what_tools_put_there_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "README.md")
    write(tmp_path, ".venv/x.md", "node_modules/x.md", "demo-output/x.md", size=900)
    write(tmp_path, "out/x-123456.report.md", "out/x-123456.reviewed.md", size=900)
    assert names(choose_documents([], tmp_path), tmp_path) == ["README.md"]
