"""The commands that change tasks: cancel, steer, approve, reject, delegate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.arguments import json_of
from redis_state.cli.arguments import user_name as _me
from redis_state.cli.client import SessionId, TaskId, client_of, found
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import Making, complain, run
from redis_state.cli.output import (
    deciders_of,
    form_lines,
    harmless,
    print_json,
    print_line,
    revealed_document,
)
from redis_state.documents import task_document
from redis_state.errors import CallerError, Conflict, InvalidDecision, InvalidField, NotFound
from redis_state.models import SteeringEventType, TaskState
from redis_state.models.tasks import new_id

if TYPE_CHECKING:
    from redis_state.worker import OpenPause, TaskClient

# The field of the payload that a text on the command line becomes, by the type of the event.
_TEXT = {
    SteeringEventType.INJECT_CONTEXT: "text",
    SteeringEventType.USER_MESSAGE: "text",
    SteeringEventType.REDIRECT: "instruction",
    SteeringEventType.CANCEL: "reason",
    SteeringEventType.PAUSE: "reason",
    SteeringEventType.RESUME: "reason",
    SteeringEventType.PRIORITIZE: "priority",
}

Target = Annotated[
    str, typer.Argument(metavar="PAUSE|SESSION", help="The pause's token or id, or a session.")
]
OfTask = Annotated[
    str | None, typer.Argument(metavar="TASK", help="With a session: its task with one open pause.")
]
Value = Annotated[
    str | None, typer.Option(metavar="JSON", help="The decision's value, as the handler gets it.")
]
Actor = Annotated[
    str | None, typer.Option(help="The actor of the decision. Default: your user name.")
]
PauseName = Annotated[
    str | None, typer.Option("--pause", help="The name of the pause, if the task has several.")
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(help="Name of this call. Repeating it under this name returns the same answer."),
]


@app.command()
def cancel(
    session: SessionId,
    task: TaskId,
    reason: Annotated[
        str | None, typer.Option(help="The reason. It becomes the task's error.")
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Do not wait for the handler's next checkpoint.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a task and its children, except isolated ones.

    A waiting task is cancelled at once, a running task at its next checkpoint. Status 3 if there is
    no such task, 4 if it is terminal.
    """

    async def do() -> TaskState:
        async with client_of(url) as client:
            await _unfinished(client, session, task)
            if not await client.cancel(session, task, reason=reason, hard=hard):
                raise Conflict("the task has ended meanwhile")
            return await found(client, session, task)

    _report(run(do()), "told to cancel", as_json=as_json)


@app.command()
def steer(
    session: SessionId,
    task: TaskId,
    kind: Annotated[
        SteeringEventType,
        typer.Argument(metavar="TYPE", case_sensitive=False, help="The type of the event."),
    ],
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="Its text, instruction, reason or priority."),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="The whole payload, instead of TEXT.")
    ] = None,
    event_id: Annotated[
        str | None,
        typer.Option("--id", help="The event's id. Repeating the command with it sends one event."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send a steering event to a task that runs or waits.

    TYPE is INJECT_CONTEXT, USER_MESSAGE, REDIRECT, PAUSE, RESUME, PRIORITIZE, CANCEL, APPROVE or
    REJECT. Status 2 if the payload breaks the rules of its type, 3 if there is no such task, 4 if
    it is terminal.

    Try: `redis-state steer S T redirect "the short version"`, `redis-state steer S T prioritize 5`,
    `redis-state steer S T inject_context --payload '{"text": "…", "severity": "correction"}'`.
    """
    named = new_id() if event_id is None else event_id
    making = Making.named("--id", named)

    async def do() -> TaskState:
        content = _payload(kind, text, payload)
        async with client_of(url) as client:
            await _unfinished(client, session, task)
            await client.steer(session, task, kind, content, source=_me(), event_id=named)
            making.made = f"sent as event {named!r}, which the task gets"
            return await found(client, session, task)

    state = run(do(), making=making)
    _report(state, f"told to {kind.value}", as_json=as_json)


@app.command()
def approve(
    target: Target,
    task: OfTask = None,
    value: Value = None,
    actor: Actor = None,
    pause: PauseName = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Approve a pause; its task resumes. Each pause has one decision.

    A pause may have a form, which the value must fit. It may name who decides it: then this is the
    vote of --actor. Status 2 if the value does not fit, 3 if there is no such pause. Status 4 if it
    is already decided, the actor may not vote, or its task is terminal.

    Try: `redis-state tasks --paused`, then `redis-state approve TOKEN --value '{"limit": 3}'` or
    `redis-state approve SESSION TASK`.
    """
    _decide(target, task, pause, value, actor, idempotency_key, url, approved=True, as_json=as_json)


@app.command()
def reject(
    target: Target,
    task: OfTask = None,
    value: Value = None,
    actor: Actor = None,
    pause: PauseName = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Reject a pause; its task resumes with that decision. Like `approve`."""
    _decide(
        target, task, pause, value, actor, idempotency_key, url, approved=False, as_json=as_json
    )


@app.command()
def delegate(
    target: Target,
    to: Annotated[str, typer.Option(help="The actor who gets the vote.")],
    task: OfTask = None,
    actor: Annotated[
        str | None, typer.Option(help="The actor whose vote it is. Default: your user name.")
    ] = None,
    pause: PauseName = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Hand the vote of an actor on a pause to another actor.

    Status 3 if there is no such pause, 4 if it is already decided. Status 4 also if the actor has
    no vote to hand on, or if the other one has or had a vote.

    Try: `redis-state delegate PAUSE --actor ann --to dan`.
    """

    async def do() -> OpenPause | None:
        async with client_of(url) as client:
            token = target if task is None else await _token(client, target, task, pause)
            await client.delegate(token, to, actor=actor or _me())
            return await client.pause(token)

    open_pause = run(do())
    if as_json:
        print_json(None if open_pause is None else revealed_document(open_pause))
    else:
        print_line(f"delegated to {harmless(to)}")


def _decide(
    target: str,
    task: str | None,
    pause: str | None,
    value: str | None,
    actor: str | None,
    idempotency_key: str | None,
    url: str | None,
    *,
    approved: bool,
    as_json: bool,
) -> None:
    async def do() -> tuple[TaskState | None, OpenPause | None]:
        content = None if value is None else json_of("--value", value)
        async with client_of(url) as client:
            token = target if task is None else await _token(client, target, task, pause)
            try:
                state = await client.resolve(
                    token,
                    approved=approved,
                    value=content,
                    actor=actor or _me(),
                    idempotency_key=idempotency_key,
                )
            except InvalidDecision:
                await _show_form(client, token)
                raise
            return state, await client.pause(token)

    state, still_open = run(do())
    done = "approved" if approved else "rejected"
    if still_open is not None:
        done += f", one vote ({deciders_of(still_open)})"
    if state is not None:
        _report(state, done, as_json=as_json)


async def _show_form(client: TaskClient, token: str) -> None:
    pause = await client.pause(token)
    for line in form_lines(pause) if pause is not None else ():
        complain(f"the form has {line}")


async def _token(client: TaskClient, session: str, task: str, name: str | None) -> str:
    """Find the token of a task's one open pause. Errors: NotFound; CallerError if it is not one."""
    await found(client, session, task)
    pauses = [one for one in await client.pauses(session) if one.task_id == task]
    pauses = [one for one in pauses if name in (None, one.name)]
    if not pauses:
        raise NotFound("the task has no such open pause")
    if len(pauses) > 1:
        names = ", ".join(one.name for one in pauses)
        raise CallerError(f"the task has {len(pauses)} open pauses ({names}): name one by --pause")
    if pauses[0].token is None:
        raise CallerError("the pause is not to be revealed: its token is needed")
    return pauses[0].token


async def _unfinished(client: TaskClient, session: str, task: str) -> None:
    state = await found(client, session, task)
    if state.status.is_terminal:
        raise Conflict(f"the task is {state.status.value}")


def _payload(kind: SteeringEventType, text: str | None, payload: str | None) -> dict[str, Any]:
    if payload is not None:
        if text is not None:
            raise CallerError("TEXT and --payload: one of the two")
        content = json_of("--payload", payload)
        if not isinstance(content, dict):
            raise InvalidField("--payload", "a JSON object is needed")
        return {str(name): value for name, value in content.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if text is None:
        return {}
    name = _TEXT.get(kind)
    if name is None:
        raise CallerError(f"{kind.value} takes no TEXT: give --payload, or use approve and reject")
    if kind is SteeringEventType.PRIORITIZE:
        try:
            return {name: int(text)}
        except ValueError:
            raise InvalidField("TEXT", "a whole number is needed as priority") from None
    return {name: text}


def _report(state: TaskState, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(task_document(state))
    else:
        print_line(f"{done}; the task is {state.status.value}")
