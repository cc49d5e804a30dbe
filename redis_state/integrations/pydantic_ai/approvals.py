"""Deferred tool calls as pauses of the task: one for each call, opened together.

An approval's payload is the call: its tool and its arguments. Where `jsonschema` is installed the
pause has a form: nothing, which approves the arguments as they are, or other arguments that fit the
tool's schema. Without a form, an approval whose value is no object is a denial. A rejection's value
is the reason that the model gets.

A call that is to be made elsewhere, or a question, is approved with its result. Its form is the
tool's schema of results, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, cast

from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.pause_terms import awaited, check_pause_terms
from redis_state.integrations.agent_runs.scopes import AgentScope
from redis_state.integrations.pydantic_ai.events import arguments_of
from redis_state.worker import Decision, Pause
from redis_state.worker.tasks.waitpoints.forms import PauseForm

PauseTerms: TypeAlias = (
    Mapping[str, Any] | Callable[[RunContext[Any], ToolCallPart], Any] | Literal[False] | None
)

_OURS = frozenset({"reason", "payload", "key", "schema", "name", "reveal", "default"})
NO_ARGUMENTS = (
    "The approval has a value that is no object of arguments, so the tool was not called."
)
NOT_IN_TIME = "No decision on this tool call arrived in time."
_REASONS = {"approval": "await_approval", "question": "await_input", "external": "await_result"}


def check_terms(terms: PauseTerms) -> PauseTerms:
    """Refuse terms that cannot be those of a pause. Errors: InvalidField."""
    if terms is not False:
        check_pause_terms("pauses", terms, own=_OURS)
    return terms


async def decided(
    scope: AgentScope, ctx: RunContext[Any], requests: DeferredToolRequests, terms: PauseTerms
) -> DeferredToolResults:
    """Open a pause for each call, then wait for all; end the run while one is undecided.

    Errors: InvalidField for terms that a pause cannot have; TaskCancelled, LeaseLost.
    """
    calls = [*requests.approvals, *requests.calls]
    opened = [(call, await _open(scope, ctx, requests, call, terms)) for call in calls]
    results = requests.build_results()
    async with scope.run.units.quiet(scope.ctx.inbox):
        for call, pause in opened:
            decision = await scope.ctx.wait_for(pause)
            _note(results, requests, call, decision)
    return results


async def _options(ctx: RunContext[Any], call: ToolCallPart, terms: PauseTerms) -> dict[str, Any]:
    given: Any = await awaited(terms(ctx, call) if callable(terms) else terms)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidField("pauses", "the function has to return options of a pause")
    options = cast("Mapping[str, Any]", given)
    check_terms(options)
    return dict(options)


async def _open(
    scope: AgentScope,
    ctx: RunContext[Any],
    requests: DeferredToolRequests,
    call: ToolCallPart,
    terms: PauseTerms,
) -> Pause:
    kind = requests.kind(call.tool_call_id)
    options = await _options(ctx, call, terms)
    payload: dict[str, Any] = {
        "question": f"May {call.tool_name} be called?" if kind == "approval" else call.tool_name,
        "tool": call.tool_name,
        "tool_call_id": call.tool_call_id,
        "arguments": arguments_of(call),
    }
    if ctx.agent is not None:
        payload["agent"] = ctx.agent.name
    if metadata := requests.metadata.get(call.tool_call_id):
        payload["metadata"] = metadata
    options.setdefault("on_timeout", "reject")
    if (schema := _schema(ctx.tools.get(call.tool_name), kind)) is not None:
        options["schema"] = schema
    key = scope.next(str(ctx.run_step), call.tool_call_id, kind="pause")
    return await scope.ctx.open_pause(
        _REASONS[kind], payload, name=call.tool_name, key=key, **cast("Any", options)
    )


def _note(
    results: DeferredToolResults,
    requests: DeferredToolRequests,
    call: ToolCallPart,
    decision: Decision,
) -> None:
    """Write a decision down as pydantic-ai wants it."""
    call_id, value = call.tool_call_id, decision.value
    results.answered_by[call_id] = decision.actor
    if requests.kind(call_id) == "approval":
        if not decision.approved:
            denied = _reason(decision)
            results.approvals[call_id] = ToolDenied() if denied is None else ToolDenied(denied)
        elif isinstance(value, dict):
            results.approvals[call_id] = ToolApproved(override_args=cast("dict[str, Any]", value))
        elif value is None:
            results.approvals[call_id] = True
        else:
            # Of a pause without a form: what it says about the call is not known.
            results.approvals[call_id] = ToolDenied(NO_ARGUMENTS)
        results.metadata[call_id] = {
            **requests.metadata.get(call_id, {}),
            "decided_by": decision.actor,
        }
    elif decision.approved:
        results.calls[call_id] = value
    else:
        results.calls[call_id] = ToolFailed(_reason(decision) or "The tool call was refused.")


def _reason(decision: Decision) -> str | None:
    if decision.timed_out:
        return NOT_IN_TIME
    value = decision.value
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("reason")
    return value if isinstance(value, str) and value else None


def _schema(tool: ToolDefinition | None, kind: str) -> dict[str, Any] | None:
    """Return the form of a call's pause, if its tool's schema can be one."""
    form: dict[str, Any] | None
    if tool is None or find_spec("jsonschema") is None:
        return None
    if kind != "approval":
        form = tool.return_schema
    else:
        # References in it are from its root, where its definitions have to stay.
        wanted = dict(tool.parameters_json_schema)
        roots = [name for name in ("$defs", "definitions") if name in wanted]
        form = {name: wanted.pop(name) for name in roots}
        form["anyOf"] = [{"type": "null"}, wanted]
    if form is None:
        return None
    try:
        return dict(PauseForm.read(form).schema)
    except InvalidField:
        # A tool of elsewhere may have any schema: its pause is decided without a form.
        return None
