"""The reference pages: written from the code, so that they cannot differ from it.

``python -m tests.guide.reference`` writes them. `test_reference.py` fails if a page is not current.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import typer
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from redis_state import errors
from redis_state.cli.main import MODULES
from redis_state.settings import Settings
from tests.guide.key_table import key_table, readable

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
# Options that all programs of this kind have.
_OF_ALL = {"help", "install_completion", "show_completion"}
_WRITTEN = (
    "<!-- Written by tests/guide/reference.py: change the code, then write the page again. -->"
)


def pages() -> dict[str, Callable[[], str]]:
    """Return what writes each page, by the page's file."""
    return {
        "cli.md": cli,
        "errors.md": error_page,
        "http.md": http,
        "keys.md": keys,
        "metrics.md": metrics,
        "settings.md": settings,
    }


def write(build: Callable[[], str]) -> str:
    """Write one page."""
    return build().rstrip() + "\n"


def settings() -> str:
    """Write the page of the settings."""
    documented = dict(_attribute_docstrings(Settings))
    rows = [
        f"| `{name}` | {_default(field)} | {_flat(documented[name])} |"
        for name, field in Settings.model_fields.items()
    ]
    return f"""# Settings

{_WRITTEN}

Give settings as keyword arguments of `RedisStateStore.from_url(url, …)`, as `Settings(…)`, or in
the environment as `REDIS_STATE_<NAME>`. Arguments win over the environment.

Durations in the environment are seconds or ISO 8601: `REDIS_STATE_UPDATES_TTL=P14D`. A value that
cannot be used raises `ConfigError`, which names the setting and never shows the value.

| setting | default | meaning |
| --- | --- | --- |
{_lines(rows)}

{_flat(inspect.getdoc(Settings) or "")}
"""


def keys() -> str:
    """Write the page of the keys."""
    return f"""# Keys

{_WRITTEN}

Every key is `<namespace>:v1:{{<scope>}}:<kind>[:<id>]`. The table shows the namespace `rs`. The
braces hold the unit of atomicity: all keys of one script share a slot of Redis Cluster. `v1` is the
version of the layout.

Ids are escaped: only `A-Za-z0-9_.-~` and `%XX` appear in a key. An id whose escaped form is longer
than 120 characters is replaced by its SHA-256.

A hash with `version`, `write` and `order` may also have `recent`: its last 16 saves, by which a
repetition is known.

Every key expires. The setting in the last column decides when. `:ids` expires with its
stream.

{key_table()}"""


def http() -> str:
    """Write the page of the gateway's routes."""
    from redis_state.gateway.app import OPERATIONS  # noqa: PLC0415 - needs the extra
    from redis_state.gateway.calls import Over  # noqa: PLC0415 - as above
    from redis_state.gateway.requests.limits import GatewayLimits  # noqa: PLC0415 - as above
    from redis_state.http_client.not_offered import NOT_OFFERED  # noqa: PLC0415 - as above

    def right(operation: Any) -> str:
        if operation.over is Over.NOTHING:
            return "none"
        return f"`{operation.right.value}` over {operation.over.value}"

    rows = [
        f"| `{each.method} {each.path}` | {right(each)} | {_flat(each.endpoint.__doc__ or '')} |"
        for each in OPERATIONS
    ]
    keys = [f"- `{each.method} {each.path}`: {each.key}" for each in OPERATIONS if each.key]
    missing = [f"| `{name}` | {reason} |" for name, reason in sorted(NOT_OFFERED.items())]
    limits = [f"| `{name}` | {field.default} |" for name, field in _fields(GatewayLimits).items()]
    return f"""# HTTP

{_WRITTEN}

The routes of the [gateway](../guides/gateway.md), below where it is mounted. `/v1/openapi.json` has
the shapes of queries, bodies and answers.

| route | right | effect |
| --- | --- | --- |
{_lines(rows)}

## What Idempotency-Key means

{_lines(keys)}

## Limits

{_flat(inspect.getdoc(GatewayLimits) or "")}

| limit | default |
| --- | --- |
{_lines(limits)}

## What HttpTaskClient has not

`HttpTaskClient` has the methods and arguments of `TaskClient`, except these.

| method | why not |
| --- | --- |
{_lines(missing)}
"""


def _fields(kind: type[Any]) -> dict[str, Any]:
    """List the fields of a dataclass by their names."""
    return {each.name: each for each in dataclasses.fields(kind)}


def metrics() -> str:
    """Write the page of the metrics."""
    from redis_state.worker.observe.metrics import PAUSE_AGES, WorkerMetrics  # noqa: PLC0415
    from redis_state.worker.observe.stats import (  # noqa: PLC0415
        RUN_BOUNDS,
        WAIT_BOUNDS,
        Polls,
        RunOutcome,
        WorkerStats,
    )
    from redis_state.worker.queue.backlog import Backlog  # noqa: PLC0415

    stats = WorkerStats(["handler"], polls=Polls())
    stats.swept["taken_over"] += 1
    stats.archived["tasks"] = stats.retained["tasks"] = 0
    for backlog in (stats.archive_backlog, stats.event_backlog, stats.record_backlog):
        backlog.put((0, 0.0), for_s=3600)
    stats.sessions_behind.put(0, for_s=3600)
    stats.queues.put({"queue": Backlog(0, 0, 0, 0.0, [])}, for_s=3600)
    stats.queue_workers.put({"queue": 0}, for_s=3600)
    stats.sweep_overdue.put({"repair": 0.0}, for_s=3600)
    stats.open_pauses.put(dict.fromkeys(PAUSE_AGES, 0), for_s=3600)
    collector = WorkerMetrics("worker", stats, 1, lambda: 0)
    rows: list[str] = []
    for family in collector.collect():
        suffix = "_total" if family.type == "counter" else ""
        names: Sequence[str] = vars(family)["_labelnames"]
        labels = ", ".join(f"`{label}`" for label in names[1:])
        rows.append(
            f"| `{family.name}{suffix}` | {family.type} | {labels} | {family.documentation} |"
        )
    outcomes = ", ".join(f"`{outcome.value}`" for outcome in RunOutcome)
    return f"""# Metrics

{_WRITTEN}

`AgentWorker(…, metrics_port=9100)` serves these for Prometheus. Every series also has the label
`worker`. [Operations](../guides/operations.md#metrics) explains how to serve them, and
[alerts](../guides/alerts.md) which of them to watch.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
{_lines(rows)}

- Outcomes of a run: {outcomes}.
- Bounds of `redis_state_queue_wait_seconds`: {_numbers(WAIT_BOUNDS)} seconds.
- Bounds of `redis_state_run_seconds`: {_numbers(RUN_BOUNDS)} seconds.
- Values of `older_than_s`: {_numbers(PAUSE_AGES)}.
- Handlers that the worker does not have are counted together as `(unknown)`.
- A [gateway](../guides/gateway.md) serves `redis_state_gateway_answers_total`, by `operation` and
  `status`, and `redis_state_gateway_streams`, the streams that are open, at its own `/metrics`.
- What is counted at the server is missing before the first count, and once the last count is five
  periods old. The gauges of queues are missing after 150 seconds as a rule, those of sweeping,
  pauses, the archive and durable events after 75. So in an outage no alert takes their last value
  for the present one.
- `redis_state_poll_age_seconds` is missing under arq's own runner, which does not report its polls.
"""


def error_page() -> str:
    """Write the page of the errors."""
    tree = (inspect.getdoc(errors) or "").split("\n\n")[1]
    # In the order of the tree, where each branch has its kinds together.
    named = [word for word in re.findall(r"\w+", tree) if word in errors.__all__]
    rows = [
        f"## {name}\n\n{_paragraphs(inspect.getdoc(getattr(errors, name)) or '')}\n"
        for name in dict.fromkeys(named)
    ]
    assert len(rows) == len(errors.__all__)
    return f"""# Errors

{_WRITTEN}

Import errors from `redis_state`. No text of an error holds a payload, a token or a password.
[Troubleshooting](../guides/troubleshooting.md) lists messages, causes and cures.

```text
{inspect.cleandoc(tree)}
```

{_lines(rows)}
"""


def cli() -> str:
    """Write the page of the command line."""
    for more in MODULES:
        import_module(f"redis_state.cli.{more}")  # they add their commands
    from redis_state.cli.commands import app  # noqa: PLC0415
    from redis_state.cli.exit_codes import ExitCode  # noqa: PLC0415

    commands = [*_commands(typer.main.get_command(app), "redis-state")]
    statuses = [f"| {code.value} | `{code.name}` |" for code in ExitCode]
    return f"""# Commands

{_WRITTEN}

[The guide](../guides/cli.md) shows them at work. Each command prints this help with `--help`.

| exit status | name |
| --- | --- |
{_lines(statuses)}

{_lines(commands)}
"""


def _commands(group: Any, prefix: str) -> Iterator[str]:
    groups: list[tuple[Any, str]] = []
    with click.Context(group) as context:
        for name in sorted(group.list_commands(context)):
            command = group.get_command(context, name)
            if command.hidden:
                continue
            if hasattr(command, "list_commands"):
                groups.append((command, f"{prefix} {name}"))
                continue
            yield from _command(command, f"{prefix} {name}")
    for inner, called in groups:
        yield from _group(inner, called)


def _group(group: Any, prefix: str) -> Iterator[str]:
    # Such as `redis-state gateway`, a group may be a command too.
    yield from _command(group, prefix)
    yield from _commands(group, prefix)


def _command(command: Any, called: str) -> Iterator[str]:
    yield f"## {called}\n\n{_paragraphs(inspect.cleandoc(command.help or ''))}\n"
    rows = [row for each in command.params if (row := _parameter(each)) is not None]
    if rows:
        yield f"| parameter | default | meaning |\n| --- | --- | --- |\n{_lines(rows)}\n"


def _parameter(parameter: Any) -> str | None:
    if parameter.name in _OF_ALL or getattr(parameter, "hidden", False):
        return None
    is_argument = parameter.param_type_name == "argument"
    shown = parameter.metavar or parameter.name.upper()
    names = shown if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    names = names.replace("|", "\\|")
    default = parameter.default
    if parameter.required:
        default = "required"
    elif default is None or default == [] or callable(default) or isinstance(default, bool):
        default = ""
    text = _flat(getattr(parameter, "help", None) or "").replace("|", "\\|")
    if parameter.envvar:
        text += f" In the environment: `{parameter.envvar}`."
    return (
        f"| `{names}` | {f'`{default}`' if default not in ('', 'required') else default} | {text} |"
    )


def _attribute_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the docstring under each attribute of a class."""
    (definition,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
            case _:
                pass


def _default(field: Any) -> str:
    value = field.default
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value is PydanticUndefined or value == frozenset():
        return "none"
    if isinstance(value, timedelta):
        return _duration(value)
    return f"`{value}`" if isinstance(value, str | bool) else f"{value:,}"


def _duration(value: timedelta) -> str:
    for unit, name in (("days", "day"), ("hours", "hour"), ("minutes", "minute")):
        count, rest = divmod(value, timedelta(**{unit: 1}))
        if not rest:
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{value.total_seconds():g} seconds"


def _flat(text: str) -> str:
    return readable(" ".join(text.split()))


def _paragraphs(text: str) -> str:
    return "\n\n".join(readable(part) for part in re.split(r"\n\s*\n", text))


def _numbers(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _lines(rows: list[str]) -> str:
    return "\n".join(rows)


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, build in pages().items():
        (FOLDER / name).write_text(write(build), encoding="utf-8")


if __name__ == "__main__":
    main()
