from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.servers.embedded import binary_of, kinds, processes_with, wait_for


@pytest.fixture(params=kinds())
def binary(request: pytest.FixtureRequest) -> Path:
    """Give a server's binary, of each kind that this machine has."""
    found = binary_of(str(request.param))
    if found is None:
        pytest.skip(f"no {request.param} on this machine")
    return found


@pytest.fixture(scope="module")
def short_temporary_root(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    """Give a module a temporary root of its own, and find it empty at the end."""
    tmp_path_factory.getbasetemp()  # where it belongs, before the temporary root changes
    root = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp")).resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(root))
        patch.setattr(tempfile, "tempdir", str(root))
        yield root
    wait_for(lambda: not processes_with(str(root)), "no process is left")
    assert [path.name for path in root.iterdir()] == []
    root.rmdir()


@pytest.fixture
def home(short_temporary_root: Path) -> Generator[Path, None, None]:
    """A short path: tmp_path can be too long for a socket, which is a test of its own."""
    directory = Path(tempfile.mkdtemp(prefix="home-", dir=short_temporary_root))
    yield directory / "data"
    wait_for(lambda: not processes_with(str(directory)), f"no process is left in {directory}")
    shutil.rmtree(directory)
