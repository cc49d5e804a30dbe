"""The commands that talk to a running task: signal, request, value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.arguments import json_of, user_name
from redis_state.cli.client import SessionId, TaskId, client_of, found
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import Making, run
from redis_state.cli.output import brief, harmless, print_json, print_line, print_table
from redis_state.cli.tasks.control import IdempotencyKey
from redis_state.errors import NotFound
from redis_state.models.tasks import new_id

if TYPE_CHECKING:
    from redis_state.worker import PublishedValue

MessageName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the message.")]
Payload = Annotated[
    str | None,
    typer.Argument(metavar="JSON", help="The payload; a text needs quotes of its own."),
]


@app.command()
def signal(
    session: SessionId,
    task: TaskId,
    name: MessageName,
    payload: Payload = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal to a task that runs or waits. Its handler takes it by `ctx.receive(NAME)`.

    Status 2 if the payload cannot be sent; 3 if there is no such task; 4 if the task is terminal or
    its mailbox is full.

    Try: `redis-state signal SESSION TASK review '{"score": 3}'`.
    """
    key = new_id() if idempotency_key is None else idempotency_key

    async def do() -> str:
        content = _payload(payload)
        async with client_of(url) as client:
            return await client.signal(
                session, task, name, content, idempotency_key=key, sender=user_name()
            )

    message_id = run(do(), making=Making.named("--idempotency-key", key))
    if as_json:
        print_json({"message_id": message_id})
    else:
        print_line(f"sent {message_id}")


@app.command()
def request(
    session: SessionId,
    task: TaskId,
    name: MessageName,
    payload: Payload = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="How many seconds to wait for the reply.")
    ] = 30.0,
    idempotency_key: IdempotencyKey = None,
    url: Url = None,
) -> None:
    """Send a request to a task, wait for its handler's reply, and print it as JSON.

    Status 1 if the handler refuses, or no reply comes in time or any more. Otherwise like `signal`.
    """
    key = new_id() if idempotency_key is None else idempotency_key

    async def do() -> Any:
        content = _payload(payload)
        async with client_of(url) as client:
            return await client.request(
                session,
                task,
                name,
                content,
                timeout_s=timeout,
                idempotency_key=key,
                sender=user_name(),
            )

    print_json(run(do(), making=Making.named("--idempotency-key", key)))


@app.command()
def value(
    session: SessionId,
    task: TaskId,
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="The value's key. Default: all of them.")
    ] = None,
    wait: Annotated[
        float | None, typer.Option(min=0, help="Wait so many seconds for the first one.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print a value that a task has published, as JSON, or list all of them.

    Status 3 if there is no such task or no such value.
    """

    async def look() -> list[PublishedValue]:
        async with client_of(url) as client:
            await found(client, session, task)
            if key is not None and wait is not None:
                await client.value(session, task, key, wait=wait)
            return await client.values(session, task)

    values = run(look())
    if key is None:
        _print_values(values, as_json=as_json)
        return

    async def pick() -> Any:
        for one in values:
            if one.key == key:
                return one.value
        raise NotFound(f"the task has published no value {harmless(key)!r}")

    print_json(run(pick()))


def _print_values(values: list[PublishedValue], *, as_json: bool) -> None:
    moments = [datetime.fromtimestamp(one.at_ms / 1000, UTC) for one in values]
    if as_json:
        print_json(
            [
                {"key": one.key, "value": one.value, "at": at.isoformat(), "epoch": one.epoch}
                for one, at in zip(values, moments, strict=True)
            ]
        )
        return
    rows = [
        [harmless(one.key), brief(one.value), f"{at:%Y-%m-%d %H:%M:%S}"]
        for one, at in zip(values, moments, strict=True)
    ]
    print_table(["key", "value", "published"], rows, none="No values.")


def _payload(text: str | None) -> Any:
    return None if text is None else json_of("JSON", text)
