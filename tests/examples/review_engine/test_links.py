"""The review of Markdown documents: links are checked against real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.review.engine import (
    LinkPolicy,
    check_links,
    parse,
)
from tests.support.documents import kinds, write


class TestLinks:
    def check(
        self, folder: Path, text: str, policy: LinkPolicy = LinkPolicy.RELATIVE
    ) -> list[tuple[str, int]]:
        return kinds(check_links(parse(write(folder, "docs/page.md", text)), policy))

    def test_existing_targets_are_fine(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/my file.md", "# T\n")
        write(tmp_path, "docs/ünï.png", b"")
        write(tmp_path, "README.md", "# Read\n")
        text = (
            "# Here\n\n[a](my%20file.md) [b](<my file.md> 'title') ![c](%C3%BCn%C3%AF.png)\n"
            "[d](../README.md#read) [e](#here) [f](../docs/) [g](ünï.png?raw=true) [h][r]\n"
            '[i](#) [j](#top) <a href="#here">k</a>\n\n[r]: ../README.md "Title"\n'
        )
        assert self.check(tmp_path, text) == []

    def test_missing_targets_are_errors(self, tmp_path: Path) -> None:
        text = "[a](gone.md)\n![b](gone.png)\n[c](#gone)\n[d]()\n\n[e][r]\n\n[r]: gone.md\n"
        assert self.check(tmp_path, text) == [
            ("broken-link", 1),
            ("broken-image", 2),
            ("broken-anchor", 3),
            ("empty-link", 4),
            ("broken-link", 6),
        ]

    def test_anchors_in_other_documents_are_looked_up(self, tmp_path: Path) -> None:
        other = "# Ünïcode Title\n\n## Part\n\n## Part\n\n<a name='by-name'></a>\n"
        write(tmp_path, "docs/other.md", other)
        text = (
            "[ok](other.md#part-1)\n[ok](other.md#%C3%BCn%C3%AFcode-title)\n"
            "[ok](other.md#by-name)\n[no](other.md#Part)\n[no](other.md#part-2)\n"
            "[ok](other.md#L3)\n"
        )
        assert self.check(tmp_path, text) == [("broken-anchor", 4), ("broken-anchor", 5)]

    def test_a_changed_target_is_read_again(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/other.md", "# Old\n")
        assert self.check(tmp_path, "[a](other.md#new)\n") == [("broken-anchor", 1)]
        write(tmp_path, "docs/other.md", "# Old\n\n## New\n")
        assert self.check(tmp_path, "[a](other.md#new)\n") == []

    def test_fragments_of_other_files_are_not_judged(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/code.py", "x = 1\n")
        assert self.check(tmp_path, "[a](code.py#anything) [b](../docs#x)\n") == []

    @pytest.mark.parametrize("target", ["a" * 5000 + ".md", "nul%00.md", "bad%ff.md", "100%.md"])
    def test_impossible_names_do_not_exist(self, tmp_path: Path, target: str) -> None:
        assert self.check(tmp_path, f"[a]({target})\n") == [("broken-link", 1)]

    def test_policies_differ_on_what_is_not_relative(self, tmp_path: Path) -> None:
        write(tmp_path, "README.md", "# Read\n")
        text = (
            "[a](http://example.org)\n[b](https://example.org)\n[c](/etc/hosts)\n"
            "[d](../README.md)\n[e](file:///etc/hosts)\n[f](mailto:a@b.c)\n[g](//example.org)\n"
            "[h](C:\\\\x.md)\n"
        )
        assert self.check(tmp_path, text) == []
        assert self.check(tmp_path, text, LinkPolicy.STRICT) == [
            ("external-link", 1),
            ("absolute-link", 3),
            ("outside-root", 4),
            ("absolute-link", 5),
            ("absolute-link", 8),
        ]

    def test_the_root_may_be_wider_than_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "README.md", "# Read\n")
        page = parse(write(tmp_path, "docs/page.md", "[a](../README.md) [b](../../x.md)\n"))
        found = check_links(page, LinkPolicy.STRICT, root=tmp_path)
        assert [(f.kind, f.message) for f in found] == [
            ("outside-root", "../../x.md leaves the root folder")
        ]

    def test_a_target_that_cannot_be_read_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page = parse(write(tmp_path, "page.md", "[a](other.md#x)\n"))
        write(tmp_path, "other.md", "# X\n")

        def refuse(_path: Path) -> bytes:
            raise PermissionError

        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert [f.message for f in check_links(page)] == ["other.md#x cannot be read"]
