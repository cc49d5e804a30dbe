"""A worker, its client and the doctor in a process that has no arq."""
# ruff: noqa: E402 - an import of it is to fail before any other is made

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

sys.modules["arq"] = None  # type: ignore[assignment]

import redis
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.doctor import examine
from redis_state.errors import ConfigError
from redis_state.models import UpdateType
from redis_state.worker import AgentWorker, Schedule, TaskClient, TaskContext, cleanup_cron


async def work(ctx: TaskContext) -> str:
    """Do a step, and wait for an approval."""
    done = await ctx.step("one", lambda: "done")
    decision = await ctx.approval("go on?")
    return f"{done} {decision.approved}"


def _refusal(of: Any) -> str:
    try:
        of()
    except ConfigError as error:
        return str(error)
    return ""


async def main(argument: dict[str, str]) -> None:
    """Run a task and a schedule's, and print what became of them."""
    url, namespace = argument["url"], argument["namespace"]
    settings = Settings(url=SecretStr(url), namespace=namespace)
    worker = AgentWorker({"work": work}, settings, queue=argument["queue"], poll_s=0.01)
    serving = asyncio.create_task(worker.serve(handle_signals=False))
    async with (
        RedisStateStore(settings) as store,
        TaskClient(store, queue=worker.queue_names[0]) as client,
    ):
        task = await client.submit("work", session_id="s")
        async for entry in client.watch("s", task):
            content: Any = entry.value.content
            if entry.value.update_type is UpdateType.CHECKPOINT:
                await client.approve(content["pause_id"], actor="ann")
        schedule = Schedule(
            schedule_id="each", handler="work", session_id="each", every=timedelta(hours=1)
        )
        await client.schedules.save(schedule)
        await client.schedules.trigger("each")
        result = await client.result("s", task)
        (fired,) = [each.task_id for each in await store.list_tasks("each")]
        await client.cancel("each", fired)
        await client.schedules.delete("each")
        serving.cancel()
        await asyncio.wait({serving})
    tasks: Any = None
    made = {
        "redis": redis.__version__,
        "result": result,
        "questions": sorted({each.question for each in await examine(settings)}),
        "refused": [_refusal(worker.arq_settings), _refusal(lambda: cleanup_cron(tasks))],
        "imported": [name for name in sys.modules if name.startswith("arq.")],
    }
    sys.stdout.write(json.dumps(made))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
