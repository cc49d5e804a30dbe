"""Where a host's own tests come from: its sdist, else the tag of its repository.

Nothing of them is in this repository. They are kept in ``build/upstream``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.unpacking import unpack
from tools.upstream.host import Host

FOLDER = Path(__file__).parents[2] / "build" / "upstream"
_LIMIT_S = 600


class NoSourcesError(Exception):
    """The tests can be had neither from the sdist nor from the repository."""


def sources_of(host: Host) -> Path:
    """Return a folder with the sources of the installed version, tests among them.

    ``SOURCES`` names a folder that has them already. Errors: NoSourcesError.
    """
    if given := os.environ.get("SOURCES"):
        return _with_tests(host, Path(given).resolve())
    release = version(host.package)
    kept = FOLDER / f"{host.package}-{release}"
    if kept.exists():
        return _with_tests(host, kept)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=FOLDER) as scratch:
        try:
            found = _with_tests(host, _unpacked(host.package, release, Path(scratch)))
        except NoSourcesError:
            found = _with_tests(host, _cloned(host, release, Path(scratch) / "clone"))
        shutil.move(found, kept)
    return kept


def files_of(host: Host, sources: Path) -> list[str]:
    """Return the files of tests that name the store."""
    patterns = (host.tests,) if isinstance(host.tests, str) else host.tests
    found = sorted({file for pattern in patterns for file in sources.glob(pattern)})
    return [str(file) for file in found if host.names_the_store(file.read_text(encoding="utf-8"))]


def _with_tests(host: Host, sources: Path) -> Path:
    if not files_of(host, sources):
        raise NoSourcesError(f"{sources.name} has no tests like {host.tests}")
    return sources


def _unpacked(package: str, release: str, scratch: Path) -> Path:
    downloading = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    _run(*downloading, "--no-binary", package, "-d", str(scratch), f"{package}=={release}")
    for archive in scratch.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            unpack(opened, scratch / "sdist")
    return next((scratch / "sdist").glob("*"), scratch)


def _cloned(host: Host, release: str, folder: Path) -> Path:
    tag = host.tag.format(version=release)
    cloning = ("git", "clone", "--quiet", "--depth", "1", "--branch", tag)
    _run(*cloning, host.repository, str(folder))
    return folder


def _run(*command: str) -> None:
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSourcesError(f"{command[0]}: {error}") from error
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise NoSourcesError(f"`{' '.join(command[:3])} …` failed: {last}")
