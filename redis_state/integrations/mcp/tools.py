"""Tools that run on workers: one function gives the server its tool, and the workers their handler.

The server checks the arguments and resolves what the tool asks for before it begins. The worker
runs the function, and makes the SDK's result of what it returns. Both import the function; only the
worker calls it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from inspect import Parameter, Signature, iscoroutinefunction, signature
from typing import Any, TypeAlias, get_type_hints, overload

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata, func_metadata
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ErrorData, TextContent, ToolAnnotations
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from redis_state.errors import InvalidField, RedisStateError
from redis_state.worker import Handler, TaskContext, TaskHandedBack

log: logging.Logger = logging.getLogger(__name__)

ToolFunction: TypeAlias = Callable[..., Awaitable[Any]]

# A worker calls the function by the names of its parameters.
_NAMELESS = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY)

_NAMED_ERROR = re.compile(r"ToolProtocolError: MCP error (-?[0-9]{1,9}): (.*)", re.DOTALL)


class ToolProtocolError(Exception):
    """A tool has raised an MCPError: its task fails with the code and the message."""

    def __init__(self, error: ErrorData) -> None:
        super().__init__(f"MCP error {error.code}: {error.message}")


class DurableTool:
    """A tool that runs on workers. Make it with `durable_tool`."""

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        required: bool = False,
    ) -> None:
        if not iscoroutinefunction(function):
            raise InvalidField("function", "a tool of workers is an async function")
        hints = get_type_hints(function, include_extras=True)
        given = list(signature(function).parameters.values())
        if not given or hints.get(given[0].name) is not TaskContext:
            raise InvalidField("function", "its first parameter is annotated with TaskContext")
        others = given[1:]
        if any(each.kind in _NAMELESS for each in others):
            raise InvalidField("function", "takes each of its parameters by name")
        self.function: ToolFunction = function
        self.name: str = name or function.__name__
        self.title: str | None = title
        self.description: str = description or function.__doc__ or ""
        self.annotations: ToolAnnotations | None = annotations
        self.required: bool = required
        named = [
            each.replace(
                kind=Parameter.KEYWORD_ONLY, annotation=hints.get(each.name, each.annotation)
            )
            for each in others
        ]
        self._signature = Signature(named, return_annotation=hints.get("return", Signature.empty))
        self._readers = {each.name: _reader(each) for each in named}
        self._metadata: FuncMetadata = func_metadata(
            self.facade(_never), skip_names=[each.name for each in named]
        )

    def facade(self, call: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Callable[..., Any]:
        """Return a function with the tool's signature for the SDK, which calls ``call``."""

        async def facade(**arguments: Any) -> Any:
            return await call(arguments)

        facade.__name__ = facade.__qualname__ = self.name
        facade.__doc__ = self.description
        facade.__module__ = self.function.__module__
        facade.__annotations__ = {
            name: each.annotation for name, each in self._signature.parameters.items()
        }
        if self._signature.return_annotation is not Signature.empty:
            facade.__annotations__["return"] = self._signature.return_annotation
        facade.__signature__ = self._signature  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
        return facade

    def task_input(self, checked: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input of a task: the checked arguments as JSON.

        What JSON does not bring back, such as a secret, is taken as the client has sent it.
        """
        found: dict[str, Any] = to_jsonable_python(dict(checked), by_alias=True)
        for name, value in checked.items():
            lost = name in sent and not self._reads(name, found[name], value)
            if lost and self._reads(name, sent[name], value):
                found[name] = sent[name]
        return found

    def _reads(self, name: str, plain: Any, value: Any) -> bool:
        """Return whether a worker reads a value from this JSON."""
        try:
            return bool(self._readers[name](plain) == value)
        except ValueError:  # a ValidationError too
            return False

    async def handle(self, ctx: TaskContext) -> dict[str, Any]:
        """Run the tool as the handler of a task; return its `CallToolResult` as JSON.

        What the tool raises becomes a result that says so, as in the SDK; what a crash, a cancel or
        a pause raises does not. Errors: ToolProtocolError for an MCPError; RedisStateError.
        """
        try:
            arguments = {name: self._readers[name](value) for name, value in ctx.input.items()}
            result = self._metadata.convert_result(await self.function(ctx, **arguments))
        except (RedisStateError, TaskHandedBack):
            raise
        except MCPError as error:
            raise ToolProtocolError(error.error) from None
        except ToolError as error:
            result = _failed(f"Error executing tool {self.name}: {error}")
        except Exception:
            log.exception("tool %s has failed", self.name)
            # As in the SDK, the text of an error that nobody expected stays here.
            result = _failed(f"Error executing tool {self.name}")
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    def __repr__(self) -> str:
        return f"<DurableTool {self.name!r}>"


@overload
def durable_tool(function: ToolFunction, /) -> DurableTool: ...
@overload
def durable_tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    annotations: ToolAnnotations | None = None,
    required: bool = False,
) -> Callable[[ToolFunction], DurableTool]: ...
def durable_tool(
    function: ToolFunction | None = None, /, **options: Any
) -> DurableTool | Callable[[ToolFunction], DurableTool]:
    """Make a tool of an async function whose first parameter is the `TaskContext`.

    A decorator, plain or with options: ``name``, ``title``, ``description``, ``annotations``, and
    ``required`` for a tool that only clients with the Tasks extension may call. The other
    parameters are the tool's arguments, or ``Annotated[T, Resolve(...)]`` as in the SDK: the server
    asks for those before there is a task. Errors: InvalidField.
    """

    def make(given: ToolFunction) -> DurableTool:
        return DurableTool(given, **options)

    return make if function is None else make(function)


def mcp_handlers(*tools: DurableTool) -> dict[str, Handler]:
    """Return the handlers of tools by name, for `AgentWorker`. Errors: InvalidField for two of one
    name.
    """
    handlers: dict[str, Handler] = {}
    for tool in tools:
        if tool.name in handlers:
            raise InvalidField("tools", f"two of them are named {tool.name!r}")
        handlers[tool.name] = tool.handle
    return handlers


def task_error(text: str | None) -> ErrorData:
    """Read the error of a failed task: only what its tool raised for the client."""
    named = _NAMED_ERROR.fullmatch(text or "")
    if named is not None:
        return ErrorData(code=int(named.group(1)), message=named.group(2))
    return ErrorData(code=_INTERNAL, message="The task has failed")


def _reader(parameter: Parameter) -> Callable[[Any], Any]:
    if parameter.annotation is Parameter.empty:
        return lambda value: value
    adapter: TypeAdapter[Any] = TypeAdapter(parameter.annotation)
    return adapter.validate_python


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


async def _never(arguments: Mapping[str, Any]) -> Any:
    raise NotImplementedError(list(arguments))


_INTERNAL = -32603
