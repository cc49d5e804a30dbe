"""The commands for schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("typer", reason="needs the cli extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.worker import Schedule, Schedules, ScheduleView, TaskClient
from tests.support.commands import Ran, begin, cli, end
from tests.support.tasks.schedules import settled_before


async def schedules(settings: Settings, *arguments: str) -> Ran:
    return await cli(settings, "schedules", *arguments)


async def test_a_schedule_is_created_listed_changed_and_deleted(settings: Settings) -> None:
    created = ("create", "nightly", "report", "nightly-{date}", "--cron", "0 2 * * *")
    options = ("--timezone", "Europe/Berlin", "--input", '{"secret": 1}', "--missed", "latest")
    ran = await schedules(settings, *created, *options)
    assert ran.status == 0, ran.err
    assert "secret" not in ran.out
    process = await begin(settings, "schedules", "list", "--json")
    (listed,) = (await end(process)).document
    assert listed["cron"] == "0 2 * * *"
    assert listed["timezone"] == "Europe/Berlin"
    assert listed["next_at"] is not None
    assert "input" not in listed
    shown = (await schedules(settings, "show", "nightly", "--json")).document
    assert shown["input"] == {"secret": 1}
    again = await schedules(settings, *created, *options, "--json")
    assert again.document["revision"] == shown["revision"]
    changed = await schedules(settings, *created, "--expected", shown["revision"], "--json")
    assert changed.document["missed"] == "skip"
    late = await schedules(settings, *created, *options, "--expected", shown["revision"])
    assert (late.status, "revision" in late.err or "version" in late.err) == (4, True)
    waiting = ("--attribute", "tenant=acme", "--in-turn", "--on-busy", "replace")
    changed = await schedules(settings, *created, *waiting, "--json")
    names = ("attributes", "limit_key", "in_turn", "on_busy")
    assert [changed.document[name] for name in names] == [
        {"tenant": "acme"},
        None,
        True,
        "replace",
    ]
    both = await schedules(settings, *created, *waiting, "--limit-key", "k", "--json")
    assert [both.document[name] for name in names[1:]] == ["k", True, "replace"]
    wrong = await schedules(settings, *created, "--limit-key", "")
    assert (wrong.status, "limit_key" in wrong.err) == (2, True)
    paused = await schedules(settings, "pause", "nightly", "--json")
    assert (paused.document["paused"], paused.document["next_at"]) == (True, None)
    assert "paused" in (await schedules(settings, "list")).out
    assert not (await schedules(settings, "resume", "nightly", "--json")).document["paused"]
    assert (await schedules(settings, "delete", "nightly")).status == 0
    assert (await schedules(settings, "delete", "nightly")).status == 3
    assert "no schedules" in (await schedules(settings, "list")).out


async def test_an_edit_changes_only_what_is_given(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = ("create", "nightly", "report", "nightly-{date}", "--cron", "0 2 * * *")
    options = ["--timezone", "Europe/Berlin", "--input", '{"n": 1}', "--missed", "latest"]
    options += ("--attribute", "tenant=acme", "--queue", "slow", "--end", "2030-01-01")
    await schedules(settings, *created, *options)
    before = (await schedules(settings, "show", "nightly", "--json")).document

    async def edited(*arguments: str) -> dict[str, object]:
        ran = await schedules(settings, "edit", "nightly", *arguments)
        assert ran.status == 0, ran.err
        shown = (await schedules(settings, "show", "nightly", "--json")).document
        return {name: shown[name] for name in shown if shown[name] != before[name]}

    assert await edited() == {}
    changed = await edited("--cron", "0 3 * * *", "--attribute", "n=2", "--clear", "end")
    attributes = {"tenant": "acme", "n": 2}
    changed = {name: changed[name] for name in changed.keys() - {"revision", "next_at"}}
    assert changed == {"cron": "0 3 * * *", "attributes": attributes, "end": None}
    changed = await edited("--every", "1h", "--clear", "attributes", "--attribute", "n=3")
    assert (changed["cron"], changed["every_s"], changed["attributes"]) == (None, 3600, {"n": 3})
    late = await schedules(settings, "edit", "nightly", "--expected", before["revision"])
    assert late.status == 4
    assert (await schedules(settings, "edit", "none", "--priority", "1")).status == 3
    save = Schedules.save

    async def save_behind_another(known: Schedules, wanted: Schedule, **given: Any) -> ScheduleView:
        await save(known, replace(wanted, handler="other"))
        return await save(known, wanted, **given)

    monkeypatch.setattr(Schedules, "save", save_behind_another)
    assert (await schedules(settings, "edit", "nightly", "--priority", "1")).status == 4
    assert (await edited())["handler"] == "other"


async def test_a_schedule_is_triggered_and_backfilled(
    settings: Settings, store: RedisStateStore
) -> None:
    created = await schedules(settings, "create", "hourly", "report", "hourly", "--every", "1h")
    assert created.status == 0, created.err
    trigger = ("trigger", "hourly", "--idempotency-key", "k", "--json")
    first = (await schedules(settings, *trigger)).document
    assert (await schedules(settings, *trigger)).document == first
    fill = ("backfill", "hourly", "2026-01-01", "2026-01-01T03:00+00:00")
    planned = (await schedules(settings, *fill, "--dry-run", "--json")).document
    assert [one["at"] for one in planned] == [f"2026-01-01T0{n}:00:00+00:00" for n in range(3)]
    assert [one["state"] for one in planned] == ["missing"] * 3
    assert (await schedules(settings, *fill)).status == 0
    assert "exists" in (await schedules(settings, *fill)).out
    tasks = {task.task_id for task in await store.list_tasks("hourly")}
    assert tasks == {first["task_id"], *(one["task_id"] for one in planned)}
    assert (await schedules(settings, *fill, "--limit", "2")).status == 2
    earlier = (
        "backfill",
        "hourly",
        "2025-01-01",
        "2025-01-01T01:00+00:00",
        "--limit-key",
        "backfill",
    )
    (filled,) = (await schedules(settings, *earlier, "--json")).document
    view = await store.tasks.look("hourly", filled["task_id"])
    assert view is not None
    assert view.key == "k:backfill"
    before = ("backfill", "hourly", "2024-01-01", "2024-01-01T01:00+00:00", "--overlap")
    (filled,) = (await schedules(settings, *before, "enqueue", "--json")).document
    view = await store.tasks.look("hourly", filled["task_id"])
    assert view is not None
    assert view.key == "b:hourly"
    assert (await schedules(settings, *before, "skip")).status == 2


@pytest.mark.role("any", why="the doctor asks what a worker may not")
async def test_one_that_nobody_looks_at_is_shown_as_overdue_and_found_by_the_doctor(
    settings: Settings, store: RedisStateStore
) -> None:
    async with TaskClient(store) as client:
        await schedules(settings, "create", "hourly", "report", "hourly", "--every", "1h")
        sound = (await cli(settings, "doctor", "--json")).document
        assert [each["state"] for each in sound if each["question"] == "schedules"] == ["sound"]
        await settled_before(store, "hourly", hours=2)
        assert "overdue" in (await schedules(settings, "list")).out
        found = (await cli(settings, "doctor", "--json")).document
        (finding,) = [each for each in found if each["question"] == "schedules"]
        assert finding["state"] == "finding"
        await client.schedules.delete("hourly")


@pytest.mark.parametrize(
    ("status", "text", "arguments"),
    [
        (2, "cron", ("create", "s", "h", "x", "--cron", "61 * * * *")),
        (2, "cron", ("create", "s", "h", "x")),
        (2, "timezone", ("create", "s", "h", "x", "--cron", "* * * * *", "--timezone", "Moon")),
        (2, "--every", ("create", "s", "h", "x", "--every", "90")),
        (2, "--grace", ("create", "s", "h", "x", "--every", "90s", "--grace", "long")),
        (2, "--start", ("create", "s", "h", "x", "--every", "90s", "--start", "tomorrow")),
        (2, "missed", ("create", "s", "h", "x", "--every", "90s", "--missed", "some")),
        (2, "session_id", ("create", "s", "h", "{day}", "--every", "90s")),
        (2, "--input", ("create", "s", "h", "x", "--every", "90s", "--input", "{")),
        (2, "FROM", ("backfill", "s", "then", "2026-01-01")),
        (3, "no schedule", ("show", "none")),
        (3, "no schedule", ("trigger", "none")),
        (3, "no schedule", ("backfill", "none", "2026-01-01", "2026-01-02")),
        (3, "no schedule", ("create", "s", "h", "x", "--every", "90s", "--expected", "r")),
    ],
)
async def test_what_cannot_be_is_one_line_and_a_status(
    settings: Settings, status: int, text: str, arguments: tuple[str, ...]
) -> None:
    ran = await schedules(settings, *arguments)
    assert ran.status == status
    assert text in ran.err
    assert len(ran.err.splitlines()) == 1
