"""The Lua scripts as package data: found, joined with what they include, named by content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from redis_state.errors import ConfigError
from redis_state.scripts.header import Header, parse
from redis_state.transport.wire.script import Script

_INCLUDE = re.compile(r"^-- @include (\w+)[ \t]*$", re.MULTILINE)
# The properties of a script are gone before this is looked for; a part has none.
_MISSPELT = re.compile(
    r"^(?!-- @include \w+[ \t]*$).*@(?:include|each|once|idempotent|lasting|reading)\b.*$",
    re.MULTILINE,
)
_COMMENTS = re.compile(r"(?:--[^\n]*\n)*")


class Library(Mapping[str, Script]):
    """The Lua files of a folder: its scripts in any folder of it but ``lib``, where the parts are.

    A name is unique in all folders. All files are read at once, so that a process has those of one
    version, though the package may be upgraded under it. A script is made of them at its first use.
    Errors: ConfigError.
    """

    def __init__(self, folder: Traversable) -> None:
        self._scripts: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        self._made: dict[str, Script] = {}
        found: dict[tuple[bool, str], Traversable] = {}
        for path, file in _lua_files(folder):
            is_part, name = path[0] == "lib", path[-1].removesuffix(".lua")
            if other := found.get((is_part, name)):
                raise ConfigError(f"two Lua files have the name {name}: {other} and {file}")
            found[is_part, name] = file
            texts = self._parts if is_part else self._scripts
            texts[name] = file.read_text(encoding="utf-8")

    def __getitem__(self, name: str) -> Script:
        """Make a script, or return the one that was made."""
        if name not in self._made and name in self._scripts:
            self._made[name] = self.load(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._scripts)

    def __contains__(self, name: object) -> bool:
        return name in self._scripts

    def names(self) -> list[str]:
        """List the names of the scripts, sorted."""
        return sorted(self._scripts)

    def load(self, name: str) -> Script:
        """Make a script of its text and of each part that it includes."""
        if name not in self._scripts:
            raise ConfigError(f"the Lua script {name}.lua is missing")
        header, text = parse(name, self._scripts[name])
        text = self._resolve(_body(header, text), placed=set(), path=(name,))
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return Script(
            name,
            text,
            digest,
            each="each" in header.properties,
            once="once" in header.properties,
            idempotent="idempotent" in header.properties,
            lasting="lasting" in header.properties,
            reading="reading" in header.properties,
            keys=tuple(header.keys),
            arguments=tuple(header.arguments),
        )

    def _resolve(self, text: str, *, placed: set[str], path: tuple[str, ...]) -> str:
        misspelt = _MISSPELT.search(text)
        if misspelt:
            meant = "'-- @include <name>', or '-- @each' or another property in a script"
            raise ConfigError(f"{path[-1]}: write {meant}, not {misspelt.group()!r}")

        def part(found: re.Match[str]) -> str:
            name = found.group(1)
            inner = (*path, f"lib/{name}")
            if inner[-1] in path:
                raise ConfigError("Lua includes go in a circle: " + " -> ".join(inner))
            if name in placed:
                return ""
            body = self._resolve(self._part(name, path[-1]), placed=placed, path=inner)
            placed.add(name)
            return body.rstrip("\n")

        return _INCLUDE.sub(part, text)

    def _part(self, name: str, wanted_by: str) -> str:
        if name not in self._parts:
            raise ConfigError(f"the Lua script {name}.lua is missing: {wanted_by} includes it")
        return self._parts[name]


def lua_folder() -> Traversable:
    """Find the package's own Lua files. Errors: ConfigError."""
    package = resources.files("redis_state")
    inside = package / "lua"
    if inside.is_dir():
        return inside
    # In a checkout it stands beside the package.
    if isinstance(package, Path) and (package.parent / "lua" / "lib").is_dir():
        return package.parent / "lua"
    raise ConfigError("the Lua scripts are missing: the package was built without lua/")


def _lua_files(folder: Traversable) -> Iterator[tuple[tuple[str, ...], Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            for path, file in _lua_files(entry):
                yield (entry.name, *path), file
        elif entry.name.endswith(".lua"):
            yield (entry.name,), entry


def _body(header: Header, text: str) -> str:
    """Put the statements that name the inputs behind the comments and parts at the top."""
    comments = _COMMENTS.match(text)
    top = comments.group() if comments else ""
    parts = "".join(f"-- @include {name}\n" for name in header.parts())
    names = "".join(f"{line}\n" for line in header.preamble())
    rest = text[len(top) :]
    if "each" not in header.properties:
        return f"{top}{parts}{names}{rest}"
    width = len(header.keys) + ("once" in header.properties)
    body = f"local function body(KEYS, ARGV)\n{names}{rest}end\n"
    return f"{top}{parts}{body}return each(body, KEYS, ARGV, {width})\n"


# Their files are read at import, so that a package built without them fails at once.
SCRIPTS: Library = Library(lua_folder())
