"""Entry point of the ``redis-state`` command."""

from __future__ import annotations

import sys

_EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "markdown_it": "cli",
    "mdit_py_plugins": "cli",
    "arq": "worker",
}


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from redis_state.cli import control, tasks  # noqa: F401, PLC0415 - they add their commands
        from redis_state.cli.commands import app  # noqa: PLC0415

        app()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        sys.exit(
            f"redis-state: {error.name} is missing, which the extra {extra!r} brings. "
            "Install all of them: pip install 'redis_state[all]'"
        )


if __name__ == "__main__":
    main()
