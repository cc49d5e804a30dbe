"""Tool calls that need an approval as pauses of the task: one for each, opened together.

A pause's payload is the call: its tool and its arguments. An approval of ``{"always": true}`` also
approves later calls of the tool in this run. With a ``schema`` of the terms it may have another
value, which the tool reads with `current_decision`. Without one, any other value is a rejection.
A rejection's value is the reason that the model gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

from agents import RunState
from agents.items import ToolApprovalItem

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.pause_terms import awaited
from redis_state.integrations.openai_agents.events import arguments_of
from redis_state.integrations.openai_agents.terms import AgentRun, check_pauses
from redis_state.worker import Decision, Pause

NOT_READ = "The approval has a value that nothing reads, so the tool was not called."
NOT_IN_TIME = "No decision on this tool call arrived in time."
_ALWAYS = {"type": "object", "properties": {"always": {"type": "boolean"}}}
_FORM = {"anyOf": [{"type": "null"}, {**_ALWAYS, "additionalProperties": False}]}


async def decide(run: AgentRun, state: RunState[Any, Any], calls: list[ToolApprovalItem]) -> None:
    """Open a pause for each call, then wait for all; end the run while one is undecided.

    Errors: InvalidField for terms that a pause cannot have; TaskCancelled, LeaseLost.
    """
    opened = [(call, *await _open(run, call)) for call in calls]
    ctx = run.scope.ctx
    async with run.scope.run.units.quiet(ctx.inbox):
        for call, pause, has_schema in opened:
            decision = await ctx.wait_for(pause)
            origin = run.approvals.origin(call) or run.origin
            run.approvals.decisions[origin, _call_id(call)] = decision
            _note(state, call, decision, has_schema=has_schema)


async def _open(run: AgentRun, call: ToolApprovalItem) -> tuple[Pause, bool]:
    """Open a call's pause; return also whether its terms say what an approval's value may be."""
    options, call_id = await _options(run, call), _call_id(call)
    tool = call.qualified_name or call.name or "tool"
    payload: dict[str, Any] = {
        "question": f"May {tool} be called?",
        "tool": tool,
        "tool_call_id": call_id,
        "arguments": arguments_of(call.arguments),
        "agent": call.agent.name,
    }
    options.setdefault("on_timeout", "reject")
    has_schema = options.get("schema") is not None
    if find_spec("jsonschema") is not None:
        options.setdefault("schema", _FORM)
    key = run.scope.next(call_id, kind="pause")
    opened = await run.scope.ctx.open_pause(
        "await_approval", payload, name=tool, key=key, **cast("Any", options)
    )
    return opened, has_schema


async def _options(run: AgentRun, call: ToolApprovalItem) -> dict[str, Any]:
    given: Any = run.terms.pauses
    given = await awaited(given(call)) if callable(given) else given
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidField("pauses", "the function has to return options of a pause")
    options = cast("Mapping[str, Any]", given)
    check_pauses(options)
    return dict(options)


def _call_id(call: ToolApprovalItem) -> str:
    raw: Any = call.raw_item
    is_mapping = isinstance(call.raw_item, Mapping)
    for name in ("call_id", "id"):
        found: Any = raw.get(name) if is_mapping else getattr(raw, name, None)
        if isinstance(found, str) and found:
            return found
    raise InvalidField("call_id", "of a tool call that needs an approval is missing")


def _note(
    state: RunState[Any, Any], call: ToolApprovalItem, decision: Decision, *, has_schema: bool
) -> None:
    """Write a decision down as the SDK wants it."""
    value = decision.value
    if decision.approved:
        if has_schema or _is_read(value):
            always = isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("always")
            state.approve(call, always_approve=bool(always))
        else:
            # Of a pause without a form: what it says about the call is not known.
            state.reject(call, rejection_message=NOT_READ)
        return
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("reason")
    reason = NOT_IN_TIME if decision.timed_out else value
    state.reject(call, rejection_message=reason if isinstance(reason, str) and reason else None)


def _is_read(value: Any) -> bool:
    """Return whether an approval's value is what `_FORM` allows."""
    if not isinstance(value, Mapping):
        return value is None
    fields = cast("Mapping[str, Any]", value)
    return fields.keys() <= {"always"} and isinstance(fields.get("always", False), bool)
