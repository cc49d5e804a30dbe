"""An archive of a host's own that lacks something is refused where it is given, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.archive import Archive, ArchiveReader, open_archive
from redis_state.archive.copying.archiver import Archiver
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.identity import KnownArchive
from redis_state.archive.retaining import Retainer
from redis_state.erasure import Eraser
from redis_state.errors import ConfigError
from redis_state.settings import make_settings

NOWHERE = "redis://127.0.0.1:1/0"
LACKS = ("identify", "owners_with", "classes")


def _of_before() -> type:
    """Make the class of an archive that an earlier version was content with."""

    async def does(*_: object, **__: object) -> None: ...

    names = [name for name in vars(Archive) if not name.startswith("_") and name not in LACKS]
    return type("OfBefore", (), dict.fromkeys(names, does))


class Shadowed:
    """Has all names, of which one is no method."""

    def __init__(self, kept: object) -> None:
        self._kept = kept
        self.tasks: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)


TAKERS: list[type] = [Archiver, RecordArchiver, Retainer, KnownArchive, ArchiveReader, Eraser]


@pytest.mark.parametrize("take", TAKERS, ids=[each.__name__ for each in TAKERS])
def test_who_is_given_an_older_archive_names_what_it_lacks(take: Callable[..., Any]) -> None:
    store = RedisStateStore.from_url(NOWHERE)
    with pytest.raises(ConfigError, match="OfBefore") as refused:
        take(store, _of_before()())
    assert str(refused.value).endswith(": identify, owners_with, classes")


def test_the_setting_refuses_it_too() -> None:
    with pytest.raises(ConfigError, match="identify, owners_with, classes"):
        open_archive(make_settings(NOWHERE, archive_store=_of_before()()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"archive_store": f"{__name__}:TAKERS"}, "list is no Archive: prepare, "),
        ({"archive_store": "nowhere:x"}, "cannot be imported"),
        ({"archive_store": Archive}, "class Archive is no Archive: an object of it is needed"),
        ({"archive_store": object(), "archive_url": "file:///x"}, "cannot both"),
    ],
)
def test_what_is_no_archive_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_archive(make_settings(NOWHERE, **options))


def test_a_name_that_is_no_method_is_lacking() -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    kept = open_archive(make_settings(NOWHERE, archive_url="file:///nowhere"))
    assert open_archive(make_settings(NOWHERE, archive_store=kept)).classes == kept.classes
    with pytest.raises(ConfigError, match=r"Shadowed is no Archive: tasks$"):
        open_archive(make_settings(NOWHERE, archive_store=Shadowed(kept)))
