"""PenguiFlow's A2A task store: upstream's rules, on upstream's own store and on ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, model_serializer

pytest.importorskip("penguiflow_a2a", reason="needs the published package")

from penguiflow_a2a.models import (
    TaskState,
)
from penguiflow_a2a.store import InMemoryTaskStore

from redis_state import InvalidField, Settings
from tests.processes.a2a.use_a2a_tasks import TASK, artifact, message
from tests.support.penguiflow.a2a_tasks import DONE, WORKING, hear, listing, make, push, task


@pytest.fixture(params=["upstream", "ours"])
async def either(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Any]:
    """Give upstream's own store and ours, so that both are asked the same."""
    if request.param == "upstream":
        yield InMemoryTaskStore()
        return
    async with make(settings) as made:
        yield made


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"history": [], "artifacts": [], "metadata": {}},
        {"history": [message("a"), message("b")], "metadata": {"é": [1, None, {"x": 1.5}]}},
        {"artifacts": [artifact("x", "1"), artifact("x", "2")], "status": DONE},
    ],
)
async def test_a_task_comes_back_as_it_was_created(either: Any, more: dict[str, Any]) -> None:
    made = task(**more)
    assert await either.create_task(made) == made
    assert await either.get_task(TASK) == made
    with pytest.raises(ValueError, match="already exists"):
        await either.create_task(task(context_id="another"))
    assert await either.get_task(TASK) == made


async def test_a_task_that_is_given_back_is_a_copy(either: Any) -> None:
    made = await either.create_task(task(metadata={"a": 1}, history=[message("a")]))
    made.metadata["a"] = 2
    found = await either.get_task(TASK)
    found.history.append(message("b"))
    assert await either.get_task(TASK) == task(metadata={"a": 1}, history=[message("a")])


async def test_history_is_in_order_and_cut_from_its_newest_end(either: Any) -> None:
    await either.create_task(task())
    assert (await either.get_task(TASK)).history is None
    assert (await either.get_task(TASK, history_length=3)).history == []
    stated = [message(str(n)) for n in range(5)]
    for one in stated:
        await either.add_history(TASK, one)
    for length, wanted in ((None, stated), (2, stated[3:]), (9, stated), (0, None), (-1, None)):
        assert (await either.get_task(TASK, history_length=length)).history == wanted


async def test_parts_are_added_to_the_first_artifact_of_their_id(either: Any) -> None:
    await either.create_task(task(artifacts=[artifact("a", "0")]))
    for name, text, append in [
        ("b", "1", True),
        ("b", "2", False),
        ("b", "3", True),
        ("a", "4", True),
        ("a", "5", False),
        ("a", "6", True),
    ]:
        await either.add_artifact(TASK, artifact(name, text), append=append, last_chunk=False)
    found = (await either.get_task(TASK)).artifacts
    joined = [(one.artifact_id, [part.text for part in one.parts]) for one in found]
    assert joined == [("a", ["0", "4", "6"]), ("b", ["1", "3"]), ("b", ["2"]), ("a", ["5"])]


async def test_an_unknown_task_is_a_key_error_everywhere(either: Any) -> None:
    calls = [
        either.add_history("x", message("a")),
        either.update_status("x", WORKING, final=False),
        either.add_artifact("x", artifact("a", "1"), append=True, last_chunk=True),
        either.get_task("x"),
        either.subscribe("x"),
        either.set_push_config("x", "c", push("c")),
        either.get_push_config("x", "c"),
        either.list_push_configs("x", page_size=1, page_token=None),
        either.delete_push_config("x", "c"),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="x"):
            await call


async def test_push_configs_are_listed_by_name_in_pages(either: Any) -> None:
    await either.create_task(task())
    configs = {"c1": push("b"), "c2": push("a", token="t"), "c3": push(None), "c4": push("c")}
    for config_id, config in configs.items():
        assert await either.set_push_config(TASK, config_id, config) == config
    await either.set_push_config(TASK, "c4", push("c", id="new"))
    assert await either.get_push_config(TASK, "c2") == configs["c2"]
    names: list[str | None] = []
    token: str | None = None
    while token != "":
        page = await either.list_push_configs(TASK, page_size=3, page_token=token)
        names += [config.name for config in page.configs]
        token = page.next_page_token
    assert names == [None, "a", "b", "c"]
    await either.delete_push_config(TASK, "c1")
    await either.delete_push_config(TASK, "c1")
    with pytest.raises(KeyError, match="c1"):
        await either.get_push_config(TASK, "c1")
    with pytest.raises(ValueError, match="page_size"):
        await either.list_push_configs(TASK, page_size=0, page_token=None)
    with pytest.raises(ValueError, match="page token"):
        await either.list_push_configs(TASK, page_size=1, page_token="?")


async def test_tasks_are_listed_the_last_updated_first_under_every_filter(either: Any) -> None:
    for n in range(6):
        history = [message("a"), message("b")]
        made = task(f"t{n}", f"c{n % 2}", history=history, artifacts=[artifact("x", "1")])
        await either.create_task(made)
    await either.update_status("t1", WORKING, final=False)
    await either.add_history("t0", message("c"))
    await either.add_artifact("t2", artifact("x", "2"), append=True, last_chunk=True)

    async def names(**more: Any) -> list[str]:
        return [one.id for one in (await listing(either, **more)).tasks]

    assert await names() == ["t2", "t0", "t1", "t5", "t4", "t3"]
    assert await names(context_id="c1") == ["t1", "t5", "t3"]
    assert await names(context_id="") == await names()
    assert await names(context_id="nobody") == []
    assert await names(status=TaskState.WORKING) == ["t1"]
    assert await names(status=TaskState.SUBMITTED, context_id="c0") == ["t2", "t0", "t4"]
    whole = (await listing(either, page_size=1)).tasks[0]
    assert (len(whole.history or []), len(whole.artifacts or [])) == (2, 1)
    bare = (await listing(either, page_size=1, history_length=0, include_artifacts=False)).tasks[0]
    assert (bare.history, bare.artifacts) == (None, None)


async def test_a_list_is_read_in_pages_with_the_total(either: Any) -> None:
    for n in range(7):
        await either.create_task(task(f"t{n}"))
    found: list[str] = []
    token: str | None = None
    sizes: list[int] = []
    while token != "":
        page = await listing(either, page_size=3, page_token=token)
        assert (page.page_size, page.total_size) == (3, 7)
        found += [one.id for one in page.tasks]
        sizes.append(len(page.tasks))
        token = page.next_page_token
    assert found == [f"t{n}" for n in reversed(range(7))]
    assert sizes == [3, 3, 1]
    with pytest.raises(ValueError, match="page token"):
        await listing(either, page_token="?")


async def test_only_tasks_updated_after_a_moment_are_listed(either: Any) -> None:
    await either.create_task(task("old"))
    moment = datetime.now().astimezone()
    far = moment + timedelta(hours=1)
    assert (await listing(either, status_timestamp_after=far)).total_size == 0
    past = moment - timedelta(hours=1)
    assert (await listing(either, status_timestamp_after=past)).total_size == 1


async def test_a_subscriber_hears_what_comes_in_order_until_he_stops(either: Any) -> None:
    await either.create_task(task())
    await either.update_status(TASK, WORKING, final=False, metadata={"name": "before"})
    queue, unsubscribe = await either.subscribe(TASK)
    await either.update_status(TASK, WORKING, final=False, metadata={"name": "now"})
    await either.add_history(TASK, message("not told"))
    added = artifact("a", "1")
    await either.add_artifact(TASK, added, append=True, last_chunk=True, metadata={"m": 1})
    await either.update_status(TASK, DONE, final=True)
    first, second, third = await hear(queue, 3)
    assert first.status_update is not None
    assert first.status_update.metadata == {"name": "now"}
    assert first.status_update.status == WORKING
    update = second.artifact_update
    assert update is not None
    assert (update.artifact, update.append, update.last_chunk) == (added, True, True)
    assert (update.task_id, update.context_id, update.metadata) == (TASK, "context", {"m": 1})
    assert third.status_update is not None
    assert (third.status_update.final, third.status_update.metadata) == (True, {})
    await unsubscribe()
    await unsubscribe()
    await either.update_status(TASK, WORKING, final=False)
    assert queue.empty()


async def test_an_empty_id_of_a_push_configuration_is_one_like_any_other(either: Any) -> None:
    await either.create_task(task())
    for config_id in ("a", "", "="):
        await either.set_push_config(TASK, config_id, push(f"n{config_id}"))
    assert (await either.get_push_config(TASK, "")).name == "n"
    await either.delete_push_config(TASK, "")
    with pytest.raises(KeyError):
        await either.get_push_config(TASK, "")
    left = await either.list_push_configs(TASK, page_size=9, page_token=None)
    assert [config.name for config in left.configs] == ["n=", "na"]


async def test_a_list_is_read_past_an_id_of_any_length(either: Any) -> None:
    names = ["a", "b" * 50_000, "c"]
    for name in names:
        await either.create_task(task(name))
    found, token = list[str](), None
    while token != "":
        page = await listing(either, page_size=1, page_token=token)
        found += [one.id for one in page.tasks]
        token = page.next_page_token
    assert found == names[::-1]
    assert len((await listing(either, page_size=10**20)).tasks) == 3


class _Unwritable(BaseModel):
    @model_serializer
    def refuse(self) -> Any:
        raise ValueError("a secret")


async def test_what_cannot_be_dumped_is_refused_by_name_and_nothing_is_written(
    settings: Settings,
) -> None:
    bad = {"x": _Unwritable()}
    async with make(settings) as tasks:
        with pytest.raises(InvalidField, match=r"^task: "):
            await tasks.create_task(task(metadata=bad))
        assert (await listing(tasks)).tasks == []
        await tasks.create_task(task())
        said, part = message("a"), artifact("x", "1")
        said.metadata = part.metadata = bad
        with pytest.raises(InvalidField, match=r"^message: ") as refused:
            await tasks.add_history(TASK, said)
        assert "secret" not in str(refused.value)
        with pytest.raises(InvalidField, match=r"^artifact: "):
            await tasks.add_artifact(TASK, part, append=False, last_chunk=True)
        assert await tasks.get_task(TASK) == task()
