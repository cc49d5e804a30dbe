"""The saver of LangGraph that a URL or a factory names."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from redis_state.errors import CallerError, RedisStateError


@asynccontextmanager
async def opened_saver(source: str) -> AsyncGenerator[Any]:
    """Open the saver that --from names. Errors: CallerError."""
    sys.path.append(str(Path.cwd()))
    async with AsyncExitStack() as stack:
        try:
            saver = await _enter(source, stack)
        except ImportError as error:
            raise CallerError(f"--from needs a package: {error}") from None
        except (RedisStateError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - of the source's package
            # Without its text: it may have the password.
            raise CallerError(f"--from cannot be opened: {type(error).__name__}") from None
        yield saver


async def _enter(source: str, stack: AsyncExitStack) -> Any:
    scheme, separator, rest = source.partition("://")
    made: Any = _of_url(scheme, source, rest) if separator else _of_factory(source)()
    if inspect.isawaitable(made):
        made = await made
    opened: Any = made
    if hasattr(made, "__aenter__") and not _is_saver(made):
        opened = await stack.enter_async_context(made)
    elif hasattr(made, "__enter__") and not _is_saver(made):
        opened = stack.enter_context(made)
    if not _is_saver(opened):
        raise CallerError(f"--from gives {type(opened).__name__}, not a saver of LangGraph")
    return opened


def _is_saver(made: object) -> bool:
    from langgraph.checkpoint.base import BaseCheckpointSaver  # noqa: PLC0415 - needs the extra

    return isinstance(made, BaseCheckpointSaver)


def _of_url(scheme: str, url: str, rest: str) -> Any:
    """Make the saver of a known package."""
    match scheme:
        case "postgresql" | "postgres":
            return _class("langgraph.checkpoint.postgres.aio:AsyncPostgresSaver").from_conn_string(
                url
            )
        case "sqlite":
            path = rest.removeprefix("/")
            # A file that is not there would be made.
            if not Path(path).is_file():
                raise CallerError(f"--from: there is no file {path!r}")
            return _class("langgraph.checkpoint.sqlite.aio:AsyncSqliteSaver").from_conn_string(path)
        case "redis" | "rediss" | "redis+sentinel":
            return _class("langgraph.checkpoint.redis.aio:AsyncRedisSaver").from_conn_string(url)
        case "valkey" | "valkeys":
            return _class("langgraph_checkpoint_aws:AsyncValkeySaver").from_conn_string(url)
        case "dynamodb":
            from urllib.parse import parse_qsl, urlsplit  # noqa: PLC0415 - for this one only

            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query))
            return _class("langgraph_checkpoint_aws:DynamoDBSaver")(
                parts.netloc,
                region_name=options.get("region"),
                endpoint_url=options.get("endpoint"),
            )
        case _:
            raise CallerError(f"--from: {scheme}:// is not known; use MODULE:FACTORY")


def _of_factory(target: str) -> Callable[[], Any]:
    found: Any = _class(target)
    return found if callable(found) else lambda: found


def _class(target: str) -> Any:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise CallerError("--from is neither a URL nor of the form MODULE:FACTORY")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise CallerError(f"--from: {module} has no {name}") from None
