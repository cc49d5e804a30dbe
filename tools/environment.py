"""Make .venv with uv where it can be had, else with pip, and install what a purpose needs.

    python tools/environment.py dev

A purpose is an example, or `dev`, which is what the suite needs.
Packages have the versions of requirements/dev.txt. uv is taken from PATH, else pip installs it
into .venv. uv does not read pip's configuration: where that names an index of its own, pip does
all the work. Any Python from 3.11 on can run this, without a package.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

OLDEST = (3, 11)
FOLDER = Path(".venv")
PYTHON = FOLDER / "bin" / "python"
# noxfile.py uses uv where it is here.
UV = FOLDER / "bin" / "uv"
USABLE = (PYTHON, "-c", f"import pip, sys; sys.exit(sys.version_info < {OLDEST})")
PIP = (PYTHON, "-m", "pip", "install", "-qq")
VERSIONS = "requirements/dev.txt"

# penguiflow is what the suite compares with. Its dependencies are a gigabyte that it does not need
# for that; without it those tests say so and are skipped.
PENGUIFLOW = ("--no-deps", "penguiflow>=3.11,<4")
EXAMPLES = ("-e", ".[examples]")
PURPOSES: dict[str, list[tuple[str, ...]]] = {
    "review": [EXAMPLES],
    "langgraph": [EXAMPLES],
    "a2a_server": [EXAMPLES],
    "penguiflow": [EXAMPLES, ("jsonschema>=4.0", "pyyaml>=6.0"), PENGUIFLOW],
    "pydantic_ai": [("-e", ".[examples,pydantic-ai,forms]")],
    "openai_agents": [("-e", ".[examples,openai-agents,forms]")],
    "mcp": [("-e", ".[examples,mcp]")],
    "dev": [("-e", ".[checkout]"), PENGUIFLOW],
}


def main(purpose: str) -> int:
    """Install the packages of a purpose; leave a file of its name where make looks."""
    start = time.monotonic()
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        print(f"{sys.executable} is Python {version}: 3.11 or later is needed", file=sys.stderr)
        return 1
    if purpose not in PURPOSES:
        print(f"there is no {purpose}: name one of {', '.join(PURPOSES)}", file=sys.stderr)
        return 1
    print(f"Setting up {FOLDER} for {purpose} (Python {version}) ... ", end="", flush=True)
    if not succeeds(*USABLE) and not make():
        print("failed")
        print(
            f"{sys.executable} can make no virtual environment: install its venv module"
            " (Debian: apt-get install python3-venv)",
            file=sys.stderr,
        )
        return 1
    for packages in PURPOSES[purpose]:
        problem = install(packages)
        if problem and (packages != PENGUIFLOW or purpose == "penguiflow"):
            print("failed")
            print(problem, file=sys.stderr)
            return 1
        if problem:
            print("without penguiflow ... ", end="")
    # What the tests need is enough for the examples too; PenguiFlow may be missing.
    for name in PURPOSES.keys() - {"penguiflow"} if purpose == "dev" else [purpose]:
        (FOLDER / f".{name}").touch()
    print(f"done in {time.monotonic() - start:.0f} s")
    return 0


def make() -> bool:
    """Make an environment with pip in it, in the first way that works."""
    ways: list[list[tuple[str | Path, ...]]] = [
        [("uv", "venv", "-q", "--seed", "--python", sys.executable, FOLDER)],
        [(sys.executable, "-m", "venv", FOLDER)],
        # Debian without python3-venv has no ensurepip: the host's pip then installs a pip.
        [
            (sys.executable, "-m", "venv", "--without-pip", FOLDER),
            (sys.executable, "-m", "pip", "-qq", "--python", PYTHON, "install", "pip"),
        ],
    ]
    for way in ways:
        shutil.rmtree(FOLDER, ignore_errors=True)
        if all(succeeds(*command) for command in way):
            return True
    shutil.rmtree(FOLDER, ignore_errors=True)
    return False


def install(packages: tuple[str, ...]) -> str:
    """Install packages in the first way that works; return the last problem if none does."""
    problem = ""
    for command in installers():
        ran = run(*command, *packages)
        if ran.returncode == 0:
            return ""
        problem = ran.stderr or ran.stdout
    return problem


def installers() -> Iterator[tuple[str | Path, ...]]:
    """Yield the commands that install packages, the best first."""
    if ".index-url=" in run(PYTHON, "-m", "pip", "config", "list").stdout:
        UV.unlink(missing_ok=True)
    elif not UV.exists():
        if found := shutil.which("uv"):
            UV.symlink_to(found)
        else:
            run(*PIP, "--only-binary", ":all:", "uv")
    if UV.exists():
        yield (UV, "pip", "install", "-q", "--python", PYTHON, "-c", VERSIONS)
        # uv failed: the others do the work, here and in noxfile.py.
        UV.unlink()
    yield (*PIP, "-c", VERSIONS)
    print(f"not all with the versions of {VERSIONS} ... ", end="", flush=True)
    yield PIP


def succeeds(*command: str | Path) -> bool:
    """Return whether a command exists and ends with status 0."""
    return run(*command).returncode == 0


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command; one that does not exist fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


if __name__ == "__main__":
    # One process at a time makes the environment: the lock on this file ends with the process.
    with Path(__file__).open(encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sys.exit(main(sys.argv[1]))
