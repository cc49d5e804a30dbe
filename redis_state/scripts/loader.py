"""The Lua scripts as package data: found, joined with what they include, named by content."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from redis_state.errors import ConfigError
from redis_state.transport.script import Script

_INCLUDE = re.compile(r"^-- @include (\w+)[ \t]*$", re.MULTILINE)
_EACH = re.compile(r"^-- @each[ \t]*$", re.MULTILINE)
_IDEMPOTENT = re.compile(r"^-- @idempotent[ \t]*\n", re.MULTILINE)
# The mark of a script is gone before this is looked for; a part has none.
_MISSPELT = re.compile(
    r"^(?!-- @include \w+[ \t]*$).*@(?:include|each|idempotent)\b.*$", re.MULTILINE
)
_KEY = re.compile(r"^-- KEYS\[(\d+)(\.\.)?\]", re.MULTILINE)


def load_script(name: str, folder: Traversable | None = None) -> Script:
    """Read ``<name>.lua`` with each part it includes, once, before its first use."""
    folder = folder if folder is not None else _folder()
    text = _read(folder / f"{name}.lua")
    text, idempotent = _IDEMPOTENT.subn("", text)
    each = _EACH.search(text) is not None
    if each:
        text = _run_each(name, text)
    text = _resolve(text, folder / "lib", placed=set(), path=(name,))
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, digest, each, bool(idempotent))


def script_names() -> list[str]:
    """Return the names of all scripts, sorted."""
    return sorted(
        entry.name.removesuffix(".lua")
        for entry in _folder().iterdir()
        if entry.name.endswith(".lua")
    )


def _folder() -> Traversable:
    package = resources.files("redis_state")
    inside = package / "lua"
    if inside.is_dir():
        return inside
    # In a checkout it stands beside the package.
    if isinstance(package, Path) and (package.parent / "lua" / "lib").is_dir():
        return package.parent / "lua"
    raise ConfigError("the Lua scripts are missing: the package was built without lua/")


def _read(file: Traversable, wanted_by: str = "") -> str:
    if not file.is_file():
        raise ConfigError(f"the Lua script {file} is missing{wanted_by}")
    return file.read_text(encoding="utf-8")


def _run_each(name: str, text: str) -> str:
    """Make what follows the mark a function of ``KEYS`` and ``ARGV``, run for each of the calls."""
    keys = _KEY.findall(text)
    if not keys or keys[-1][1]:
        raise ConfigError(f"{name}: '-- @each' needs a fixed number of keys")
    if len(_EACH.findall(text)) > 1:
        raise ConfigError(f"{name}: '-- @each' stands there twice")
    begin = "-- @include each\nlocal function body(KEYS, ARGV)"
    return f"{_EACH.sub(begin, text)}end\nreturn each(body, KEYS, ARGV, {len(keys)})\n"


def _resolve(text: str, lib: Traversable, *, placed: set[str], path: tuple[str, ...]) -> str:
    misspelt = _MISSPELT.search(text)
    if misspelt:
        meant = "'-- @include <name>', or '-- @each' or '-- @idempotent' in a script"
        raise ConfigError(f"{path[-1]}: write {meant}, not {misspelt.group()!r}")

    def part(found: re.Match[str]) -> str:
        name = found.group(1)
        inner = (*path, f"lib/{name}")
        if inner[-1] in path:
            raise ConfigError("Lua includes go in a circle: " + " -> ".join(inner))
        if name in placed:
            return ""
        text = _read(lib / f"{name}.lua", f": {path[-1]} includes it")
        body = _resolve(text, lib, placed=placed, path=inner)
        placed.add(name)
        return body.rstrip("\n")

    return _INCLUDE.sub(part, text)
