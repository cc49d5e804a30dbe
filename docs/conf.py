# ruff: noqa: INP001 - Sphinx reads this file by its path
"""The site: ``sphinx-build -W --keep-going -b html docs build/site``. Needs the extra ``docs``."""

from __future__ import annotations

from typing import Any

import redis_state

project = "redis_state"
author = "the redis_state authors"
version = release = redis_state.__version__
html_title = f"redis_state {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_copy_source = False
# Files that the pages link to, and that the site shows as they are.
exclude_patterns = ["benchmarks"]

# Links to headings are written as a Git host makes them.
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.strikethrough"]

# Every link to a page, a heading or a file must resolve; -W makes each failure an error.
nitpicky = False
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1).*"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
add_module_names = False
default_role = "literal"


def _as_restructured_text(*event: Any) -> None:
    """Write the trees and programs of a docstring as blocks of code."""
    lines: list[str] = event[-1]
    found: list[str] = []
    in_block = False
    for line in lines:
        begins = line.startswith("    ") and not in_block and (not found or not found[-1].strip())
        if begins:
            found += ["::", ""]
        in_block = begins or (in_block and (line.startswith("    ") or not line.strip()))
        found.append(line)
    lines[:] = found


def setup(app: Any) -> None:
    """Connect what this project's docstrings need."""
    app.connect("autodoc-process-docstring", _as_restructured_text)
