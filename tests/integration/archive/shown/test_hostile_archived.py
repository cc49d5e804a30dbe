"""Hostile values of archived tasks stay text in the console."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("jinja2", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.archive import Archive
from tests.support.browser.console import Browser, Page
from tests.support.browser.hostile import PLAIN, Hostile, evil, hostile_gateway, shape_of
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import archive_and_expire

pytestmark = pytest.mark.worker

# Pairs of payloads and handlers, which are names of tasks too.
USUAL = [(PLAIN, "says"), (PLAIN, "fails")]
HOSTILE = [(number, "says" if number % 2 else "fails") for number in range(12)]


@pytest.mark.parametrize("archive_url", ["parquet"], indirect=True)
async def test_payloads_in_archived_tasks_stay_text(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hostile_gateway(live, [PLAIN, *range(12)], monkeypatch) as hostile:
        usual = shape_of(page.source for page in await _archived(hostile, archive, USUAL))
        pages = await _archived(hostile, archive, HOSTILE)
    found, *each = (" ".join(page.text.split()) for page in pages)
    for (number, handler), text in zip(HOSTILE, each, strict=True):
        for where in (handler, "description", "attribute"):
            assert " ".join(evil(number, where).split()) in found
            assert " ".join(evil(number, where).split()) in text, where
        end = evil(number, "said" if handler == "says" else "error")
        assert " ".join(end.split()) in text, end
    assert shape_of(page.source for page in pages) - usual == set()


async def _archived(hostile: Hostile, archive: Archive, named: list[tuple[int, str]]) -> list[Page]:
    """Archive tasks that have payloads, and have them expire; return the pages that show them."""
    client, browser = hostile.served.client, Browser(hostile.served.app)
    await browser.log_in(hostile.keys[evil(PLAIN, "subject")])
    tasks = [evil(number, handler) for number, handler in named]
    for (number, handler), task in zip(named, tasks, strict=True):
        await client.submit(
            handler,
            number,
            session_id=SESSION,
            task_id=task,
            description=evil(number, "description"),
            attributes={"note": evil(number, "attribute")},
        )
        await client.wait(SESSION, task, timeout_s=60)
    await archive_and_expire(hostile.served.store, archive, *tasks)
    shown = [await browser.get("/task", session=SESSION, task=task) for task in tasks]
    return [await browser.get("/find", archived="only"), *shown]
