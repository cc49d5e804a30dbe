"""Both archives: a PostgreSQL for all tests of one process, and a folder for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import SecretStr

pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore, Settings
from redis_state.archive import Archive, open_archive
from tests.support.servers.postgres import OwnPostgres

# What pyarrow imports when it first makes an array, where it is there. Here it is imported once for
# all processes that are forked from the one that collects the tests.
for _name in ("pandas", "pyarrow.pandas_compat"):
    with suppress(ImportError):
        import_module(_name)


@pytest.fixture(params=["postgres", "parquet"])
def archive_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the URL of an archive, of each kind in turn."""
    if request.param == "postgres":
        server: OwnPostgres = request.getfixturevalue("postgres")
        return server.url
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    return tmp_path_factory.mktemp("archive").as_uri()


@pytest.fixture
def archiving(settings: Settings, archive_url: str) -> Settings:
    """Give the test's settings with an archive."""
    return settings.model_copy(update={"archive_url": SecretStr(archive_url)})


@pytest.fixture
async def archive(archiving: Settings) -> AsyncIterator[Archive]:
    """Give the test's archive, prepared."""
    opened = open_archive(archiving)
    await opened.prepare()
    yield opened
    await opened.aclose()


@pytest.fixture
async def away(archiving: Settings, tmp_path: Path) -> AsyncIterator[Archive]:
    """Give an archive of the test's kind that cannot be reached."""
    url = "postgresql://nobody@127.0.0.1:1/none"
    if archiving.archive_url is not None and "file:" in archiving.archive_url.get_secret_value():
        in_the_way = tmp_path / "file"
        in_the_way.touch()
        url = (in_the_way / "folder").as_uri()
    opened = open_archive(archiving.model_copy(update={"archive_url": SecretStr(url)}))
    yield opened
    await opened.aclose()


@pytest.fixture
async def live(archiving: Settings) -> AsyncIterator[RedisStateStore]:
    """Give a store that archives."""
    async with RedisStateStore(archiving) as opened:
        yield opened
