"""Check the project's prose and names: retired words, long sentences, docstrings' first words.

``python -m tests.guide.prose`` lists every finding, ``… docs/guides/steps.md`` those of some files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Aim at 20. No sentence of the documents has more words than this.
MAX_WORDS = 24

_RETIRED = re.compile(
    r"\b(told|tells?|telling|said|asked|noted|whoever|somebody"
    r"|go(?:es|ing)? on(?! (?:the|a|an|its|this|that|one)\b)|gone on|went on|let be|put right"
    r"|anew|befalls?|bereft|mend(?:s|ed|ing)?|whichever|anybody|in vain|hand(?:s|ed|ing)? over"
    r"|(?:is|are|was|were) over(?=[\s]*(?:[,.;:)|]|$|and\b|or\b|when\b|again\b)))\b",
    re.IGNORECASE,
)
# Class names that were renamed; as plain words of a sentence they may stay.
_RETIRED_NAMES = re.compile(r"\b(Ticket|Presence|Tally|Sight)\b")
# A file with such a word for a name has to be opened to learn what it holds.
_VAGUE_FILES = frozenset(
    ["nearest", "life", "family", "families", "sight", "line", "lines", "tally", "inside", "side"]
)
_FIRST_WORDS = frozenset(
    ["Tell", "Name", "Have", "It", "This", "Say", "Let", "What", "That", "Whether", "How", "One"]
)

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")

_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)(?:(?!\1).)+\1", re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?:])[\"')\]*]*\s+(?=\S)")
_NO_END = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|approx)\.$")


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True)
class _Text:
    """A paragraph, a list's item, a table's cell or a docstring's paragraph."""

    line: int
    words: str


def name_of(path: Path) -> str:
    """Return a file's path in the project."""
    return path.relative_to(ROOT).as_posix()


def findings(path: Path, source: str | None = None) -> Iterator[Finding]:
    """Yield what a file breaks, or would break with another text."""
    name = name_of(path)
    source = path.read_text(encoding="utf-8") if source is None else source
    if path.suffix == ".py":
        yield from _of_python(name, source)
    elif path.suffix == ".lua":
        yield from _of_texts(name, _lua_header(source))
    else:
        yield from _of_texts(name, markdown_texts(source))


def files() -> list[Path]:
    """List the files whose prose is checked."""
    found = [
        ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    ]
    for folder, pattern in (("docs", "*.md"), ("redis_state", "*.py"), ("lua", "*.lua")):
        found += sorted((ROOT / folder).rglob(pattern))
    return [path for path in found if path.is_file()]


def markdown_texts(source: str) -> list[_Text]:
    """Split Markdown into its texts, without code."""
    blank = _FENCE.sub(lambda found: "\n" * found.group().count("\n"), source)
    blank = _COMMENT.sub(lambda found: "\n" * found.group().count("\n"), blank)
    texts: list[_Text] = []
    lines: list[str] = []
    begin = 0

    def end() -> None:
        if lines:
            texts.append(_Text(begin, " ".join(lines)))
            lines.clear()

    for number, line in enumerate(blank.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or (line.startswith("    ") and not lines):
            end()
        elif stripped.startswith("|"):
            end()
            cells = re.split(r"(?<!\\)\|", stripped.strip("|"))
            texts += [_Text(number, cell.strip()) for cell in cells if cell.strip(" -:")]
        elif stripped.startswith("#"):
            end()
            texts.append(_Text(number, stripped.lstrip("# ")))
        elif _ITEM.match(line):
            end()
            begin = number
            lines.append(_ITEM.sub("", line).strip())
        else:
            begin = begin if lines else number
            lines.append(stripped)
    end()
    return texts


def _of_python(name: str, source: str) -> Iterator[Finding]:
    for node in _statements(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from _of_identifiers(name, node)
        text = ast.get_docstring(node)
        if text is None:
            continue
        line = node.body[0].lineno
        yield from _of_texts(name, _docstring_texts(text, line))
        first = text.split(maxsplit=1)[0].rstrip(",.:;") if text.strip() else ""
        if first in _FIRST_WORDS and _is_function(node):
            yield Finding(name, line, "first word", text.splitlines()[0])


def _of_identifiers(name: str, node: ast.AST) -> Iterator[Finding]:
    """Yield the retired words in the names of a module, a class, or a function with parameters."""
    match node:
        case ast.Module():
            stem = Path(name).stem
            names = {1: [stem]}
            if not _VAGUE_FILES.isdisjoint(stem.split("_")):
                yield Finding(name, 1, "vague file name", stem)
        case ast.ClassDef():
            names = {node.lineno: [node.name]}
        case ast.FunctionDef(args=given) | ast.AsyncFunctionDef(args=given):
            names = {node.lineno: [node.name]}
            for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                names.setdefault(argument.lineno, []).append(argument.arg)
        case _:
            return
    for line, found in names.items():
        for each in found:
            spaced = " ".join(_WORD.findall(each))
            retired = _RETIRED.search(spaced) or _RETIRED_NAMES.search(spaced)
            if retired:
                yield Finding(name, line, "retired identifier", each)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node with all statements in it. No definition stands inside of an expression."""
    yield node
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        # That of a lambda, or of `x if y else z`, is one expression.
        found: list[ast.AST] | ast.expr = getattr(node, part, [])
        for each in found if isinstance(found, list) else []:
            yield from _statements(each)


def _is_function(node: ast.AST) -> bool:
    """Return whether a definition is called: a property's docstring names what it is."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        "property" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def _docstring_texts(text: str, line: int) -> Iterator[_Text]:
    """Split a docstring into paragraphs, without the trees and programs that are indented."""
    paragraph: list[str] = []
    begin = line
    for number, each in enumerate([*text.splitlines(), ""], start=line):
        if each.startswith("    ") and not paragraph:
            continue
        if not each.strip() or _ITEM.match(each):
            if paragraph:
                yield _Text(begin, " ".join(paragraph))
            paragraph = []
        if each.strip():
            begin = begin if paragraph else number
            paragraph.append(_ITEM.sub("", each).strip())


def _lua_header(source: str) -> Iterator[_Text]:
    """Yield the sentences at the top of a script, before its keys and arguments."""
    for number, line in enumerate(source.splitlines(), start=1):
        if not line.startswith("--") or re.match(r"-- ?(KEYS|ARGV|Returns|Emits|@)", line):
            return
        yield _Text(number, line.removeprefix("--").strip())


def _of_texts(name: str, texts: Iterator[_Text] | list[_Text]) -> Iterator[Finding]:
    for text in texts:
        plain = _IMAGE_OR_LINK.sub(r"\1", _CODE.sub("`x`", text.words))
        for pattern in (_RETIRED, _RETIRED_NAMES):
            for found in pattern.finditer(plain):
                around = plain[max(0, found.start() - 40) : found.end() + 40]
                yield Finding(name, text.line, "retired word", f"{found.group()!r} in …{around}…")
        for sentence in _sentences(plain):
            words = len(re.findall(r"[\w`'-]*\w[\w`'-]*", sentence))
            if words > MAX_WORDS:
                yield Finding(name, text.line, "long sentence", f"{words} words: {sentence}")


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _END.finditer(text):
        if not _NO_END.search(text[: end.start()]):
            yield from _parts(text[begin : end.start()])
            begin = end.end()
    yield from _parts(text[begin:])


def _parts(sentence: str) -> list[str]:
    """Split a list of errors, each of which is a sentence of its own."""
    return sentence.split(";")


def main() -> None:
    """Print the findings."""
    chosen = [Path(each).resolve() for each in sys.argv[1:]] or files()
    found = [finding for path in chosen for finding in findings(path)]
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    sys.stdout.write(f"{dict(Counter(finding.rule for finding in found))}\n")


if __name__ == "__main__":
    main()
