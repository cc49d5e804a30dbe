"""Names that a package hands out, and imports at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package from modules and their names.

    Who needs one name, or one module of the package, does not pay for the others.
    """
    places = {name: module for module, its_names in names.items() for name in its_names.split()}
    space = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        space[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*space, *places})

    return find, listed
