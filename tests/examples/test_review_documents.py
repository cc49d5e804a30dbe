from __future__ import annotations

from pathlib import Path

import pytest

from examples.review.documents import choose_documents
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


def test_a_folder_without_documents_is_named(project: Path) -> None:
    with pytest.raises(ConfigError, match="no Markdown documents in"):
        choose_documents([project], project)
    with pytest.raises(ConfigError, match="no Markdown documents in"):
        choose_documents([], project)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a folder with nothing beside it."""
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    return folder


def test_long_documents_beside_the_folder_are_found_too(project: Path) -> None:
    write(project, "README.md")
    write(project.parent, "other/guide.md", size=700)
    found = choose_documents([], project)
    assert [path.name for path in found] == ["README.md", "guide.md"]


def test_by_default_the_readme_comes_first_then_the_docs_then_the_longest(project: Path) -> None:
    write(project, "README.md", "docs/b.md", "docs/a.md")
    write(project, "more/long.md", size=500)
    write(project, "more/longer.md", size=900)
    found = choose_documents([], project)
    wanted = ["README.md", "docs/a.md", "docs/b.md", "more/longer.md", "more/long.md"]
    assert names(found, project) == wanted


def test_by_default_there_are_twelve_at_most_and_none_is_empty_or_huge(project: Path) -> None:
    write(project, "README.md", *(f"docs/{number:02d}.md" for number in range(20)))
    write(project, *(f"more/{number:02d}.md" for number in range(9)), size=100)
    write(project, "more/empty.md", size=0)
    write(project, "more/huge.md", size=500_000)
    found = names(choose_documents([], project), project)
    assert len(found) == 12
    assert "more/empty.md" not in found
    assert "more/huge.md" not in found


def test_what_tools_put_there_is_passed_over(project: Path) -> None:
    write(project, "README.md")
    write(project, ".venv/x.md", "node_modules/x.md", "demo-output/x.md", size=900)
    write(project, "out/x-123456.report.md", "out/x-123456.reviewed.md", size=900)
    assert names(choose_documents([], project), project) == ["README.md"]
