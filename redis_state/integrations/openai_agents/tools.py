"""Tools whose calls are steps: each is made once, and a replay gets the recorded result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeAlias, cast

from agents import (
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    LocalShellTool,
    ShellTool,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.tool import (
    _DEFAULT_FAILURE_HANDLED_ATTR,  # pyright: ignore[reportPrivateUsage]
    _invoke_function_tool_with_metadata,  # pyright: ignore[reportPrivateUsage]
)
from agents.tool_context import ToolContext
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from redis_state.errors import InvalidField
from redis_state.integrations.agent_runs.outputs import shortened
from redis_state.integrations.agent_runs.running import do_unit
from redis_state.integrations.agent_runs.scopes import AgentScope, entered, joined, part
from redis_state.integrations.openai_agents.events import arguments_of, publish_tool
from redis_state.integrations.openai_agents.terms import (
    AgentRun,
    ToolTerms,
    current_run,
    decided_by,
)
from redis_state.serialization import codec

Invoke: TypeAlias = Callable[[ToolContext[Any], str], Awaitable[Any]]

_OUTPUTS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_OUTPUT: TypeAdapter[ToolOutputText | ToolOutputImage | ToolOutputFileContent] = TypeAdapter(
    ToolOutputText | ToolOutputImage | ToolOutputFileContent
)
# They act in this process, by calls that the SDK does not let anybody wrap.
_UNABLE = (ApplyPatchTool, ComputerTool, LocalShellTool)
_LONGEST_NAME = 160


class StepInvoker:
    """Invoke a tool as a step of the task that the caller is in."""

    def __init__(self, tool: FunctionTool | CustomTool) -> None:
        self._name = tool.name
        self._invoke = cast("Invoke", tool.on_invoke_tool)
        self._runs_agent = _is_agent(tool)
        # What the SDK does around a function is a part of the step too: its timeout, say.
        function = tool if isinstance(tool, FunctionTool) and not self._runs_agent else None
        self._function = function
        self._has_type = function is not None and function.output_json_schema is not None
        # The SDK's own, of a declared Python type. It has no public name.
        self._type: TypeAdapter[Any] | None = getattr(function, "_output_type_adapter", None)

    def __getattr__(self, name: str) -> Any:
        """Return what the SDK keeps at a tool's function, such as how its arguments are read."""
        if name == "__agents_bind_function_tool__" or name.startswith("_invoke"):
            raise AttributeError(name)
        return getattr(self._invoke, name)

    async def __call__(self, ctx: ToolContext[Any], arguments: str) -> Any:
        """Call the tool once, or return what is recorded. Errors: the tool's own."""
        run = current_run()
        if run is None:
            result, is_failure = await self._call(ctx, arguments)
        else:
            result, is_failure = await self._in_run(run, ctx, arguments)
        if is_failure:
            # Else the SDK would read its own text as a result of the tool's declared type.
            setattr(ctx, _DEFAULT_FAILURE_HANDLED_ATTR, True)
        return result

    async def _in_run(
        self, run: AgentRun, ctx: ToolContext[Any], arguments: str
    ) -> tuple[Any, bool]:
        call_id = ctx.tool_call_id
        place = run.scope.next(call_id, kind="tool")
        # The SDK hands on what the agent of `Agent.as_tool` waits for, not that of a function.
        # An agent that waits for people is called again with the same id: that is one call.
        origin = joined(run.origin, call_id) if self._runs_agent else ""
        scope = AgentScope(run.scope.run, place, of_call=self._runs_agent, origin=origin)
        about = {"tool": self._name, "tool_call_id": call_id}
        shown = origin or place
        await publish_tool(run, shown, {**about, "arguments": arguments_of(arguments)})
        with decided_by(run.approvals.decisions.get((run.origin, call_id))):
            result, is_failure = await self._called(run, scope, ctx, arguments)
        if not self._runs_agent or result is not None:
            await publish_tool(run, shown, {**about, "result": shortened(str(result))})
        return result, is_failure

    async def _called(
        self, run: AgentRun, scope: AgentScope, ctx: ToolContext[Any], arguments: str
    ) -> tuple[Any, bool]:
        policy: ToolTerms = run.terms.tools.get(self._name)
        if self._runs_agent or policy is False:
            # What it runs are steps, and its agent's calls may wait for people.
            with entered(scope):
                return await self._call(ctx, arguments)

        async def work() -> dict[str, Any]:
            result, is_failure = await self._call(ctx, arguments)
            if is_failure:
                return {**_write(result), "failure": True}
            return self._write_typed(result) if self._has_type else _write(result)

        name = self._name if len(self._name) <= _LONGEST_NAME else part(self._name)
        found, _ = await do_unit(scope, name, scope.path, work, policy)
        if self._type is not None and "typed" in found:
            # As JSON, which a strict type reads other things from.
            typed = codec.encode(found["typed"])
            return self._type.validate_json(typed, by_alias=False, by_name=True), False
        return _read(found), found.get("failure", False)

    def _write_typed(self, result: Any) -> dict[str, Any]:
        """Write a result of a declared type, which the SDK reads from JSON too."""
        of = self._type
        if of is not None:
            # By the names of its fields: what is written by an alias may not be read by it.
            with suppress(ValidationError):  # the SDK says so
                made = of.validate_json(result) if isinstance(result, str) else result
                made = of.validate_python(made)
                return {"typed": of.dump_python(made, mode="json", by_alias=False, round_trip=True)}
        return {"value": to_jsonable_python(result)}

    async def _call(self, ctx: ToolContext[Any], arguments: str) -> tuple[Any, bool]:
        """Call the tool as the SDK does; return also whether it made a text of a failure."""
        if self._function is None:
            return await self._invoke(ctx, arguments), False
        made = await _invoke_function_tool_with_metadata(
            function_tool=self._function, context=ctx, arguments=arguments
        )
        return made.output, made.is_sdk_generated_error


def as_step(tool: Tool) -> Tool:
    """Return a tool whose calls are steps. One that OpenAI runs is a part of the model's request.

    Errors: InvalidField for a tool that acts in this process and cannot be a step.
    """
    if isinstance(tool, FunctionTool | CustomTool):
        if isinstance(tool.on_invoke_tool, StepInvoker):
            return tool
        made = copy(tool)
        made.on_invoke_tool = cast("Any", StepInvoker(tool))
        if isinstance(made, FunctionTool) and not _is_agent(made):
            # It holds within the step, or a call that it has cut would not be recorded.
            made.timeout_seconds = None
        return made
    if isinstance(tool, _UNABLE) or (isinstance(tool, ShellTool) and tool.executor is not None):
        raise InvalidField(
            "tools", f"{tool.name!r} acts outside of steps: put what it does into a function tool"
        )
    return tool


def _is_agent(tool: Tool) -> bool:
    # The SDK's own mark of what `Agent.as_tool` makes. It has no public one.
    return bool(getattr(tool, "_is_agent_tool", False))


def _write(result: Any) -> dict[str, Any]:
    """Write a result: as JSON where that keeps it, else as the text that a model gets of it."""
    if isinstance(result, _OUTPUTS):
        return {"output": result.model_dump(mode="json")}
    if isinstance(result, list | tuple):
        parts = cast("Sequence[Any]", result)
        if any(isinstance(each, _OUTPUTS) for each in parts):
            return {"outputs": [_write(each) for each in parts]}
    return {"value": _plain(result)}


def _plain(result: Any) -> Any:
    try:
        plain = codec.decode(codec.encode(result))
    except (TypeError, ValueError, InvalidField):
        return str(result)
    return plain if str(plain) == str(result) else str(result)


def _read(found: dict[str, Any]) -> Any:
    if "output" in found:
        return _OUTPUT.validate_python(found["output"])
    if "outputs" in found:
        return [_read(each) for each in found["outputs"]]
    return found["value"]
