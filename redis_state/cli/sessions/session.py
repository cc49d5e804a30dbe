"""``redis-state session``: show, copy and move agents' sessions."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentSession,
    LlmConfig,
    RawSession,
    SessionPage,
    SessionStatus,
    SessionStore,
)
from redis_state.agents.state.ids import is_session_id, new_id
from redis_state.agents.storage.protection import is_sealed
from redis_state.cli.commands import app
from redis_state.cli.exit_codes import ExitCode, Making, or_exit, run
from redis_state.cli.output import file_of, print_table, save_to
from redis_state.cli.sessions.json_diff import differences
from redis_state.errors import CallerError, CorruptState, SessionNotFound
from redis_state.private_file import write_private
from redis_state.serialization import codec

T = TypeVar("T")

session: typer.Typer = typer.Typer(
    name="session",
    help="Show, copy and move agents' sessions.\n\n"
    "A session holds an agent's definition, its conversation and the progress of its execution. It "
    "is stored under an id, at a version that each save raises.\n\n"
    "Try: `redis-state session list --status active`, then `redis-state session show ID`.\n\n"
    "Exit status: as for all of redis-state.",
    no_args_is_help=True,
)
app.add_typer(session)

Id = Annotated[str, typer.Argument(metavar="ID", help="A session's id.")]
Side = Annotated[str, typer.Argument(help="A session's id, or the file of an export: ./NAME.")]
Url = Annotated[str | None, typer.Option("--url", help="Server address; else REDIS_STATE_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@session.command("list")
def list_(
    status: Annotated[
        SessionStatus | None, typer.Option(help="Only sessions in this status.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Only sessions of the agent with this name.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most to list.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after an earlier page.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, the newest first. The cost of a page does not depend on their number.

    The last line has the option for the next page.

    Try: `redis-state session list --agent coder --limit 10`.
    """

    async def page(store: SessionStore) -> SessionPage:
        return await store.list_headers(status=status, agent_name=agent, after=after, limit=limit)

    found = _with_store(url, page)
    headers = [header.to_dict() for header in found.headers]
    if as_json:
        _print_json({"sessions": headers, "cursor": found.cursor, "at_end": found.at_end})
        return
    columns = ("sessionId", "status", "version", "agentName", "updatedAt", "parentId")
    rows = ([header[name] for name in columns] for header in headers)
    print_table(columns, rows, none="No sessions.")
    if not found.at_end and len(headers) == limit:
        print(f"More: --after {found.cursor}")


@session.command()
def show(
    session_id: Id,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print the conversation, too.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a session: its status, what its execution did and used, how it ended.

    `--json` prints the stored document with redacted keys of models. The conversation is printed
    with `--messages` only.
    """
    found = _with_store(url, lambda store: store.get(session_id)).redacted()
    if as_json:
        _print_json(or_exit(found.to_dict))
        return
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, show_edge=False)
    for name, value in or_exit(lambda: _facts(found)).items():
        if value not in (None, ""):
            table.add_row(name, _cell(value))
    Console().print(table)
    if messages:
        for section in found.state.store.sections:
            for message in section.messages:
                print(f"\n[{_shown(section.name)}] {_shown(message.role)}: {_shown(message.text)}")


@session.command()
def fork(
    session_id: Id,
    as_id: Annotated[str | None, typer.Option("--as", help="The new session's id.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a session with the content of another one, between executions.

    Prints the new session's id. Its parent is the original session.
    """
    named = new_id() if as_id is None else as_id
    making = Making.named("--as", named)
    made = _with_store(url, lambda store: store.fork(session_id, as_id=named), making=making)
    _print_stored(made, as_json=as_json)


@session.command()
def export(
    session_id: Id,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to a file. Default, and -: print it.")
    ] = None,
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Keep the keys of models, as stored.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Write the stored document unchecked."),
    ] = False,
    url: Url = None,
) -> None:
    """Write a session as one JSON document, in the form that other languages read too.

    The keys of models are redacted, unless `--with-keys` is given. Try:
    `redis-state session export ID | redis-state session import - --as COPY --url OTHER`.

    `--raw` writes a damaged session, and each problem as a line on standard error. Correct the
    document, then store it: `redis-state session import FILE --replace`. Export it `--with-keys`,
    or its models have no keys afterwards.
    """
    if raw:
        document = _raw(session_id, url, with_keys=with_keys)
    else:
        found = _with_store(url, lambda store: store.get(session_id))
        document = or_exit((found if with_keys else found.redacted()).to_dict)
    text = json.dumps(document, indent=2)
    file = file_of(out)
    if file is None:
        print(text)
    else:
        or_exit(partial(save_to, file, lambda path: write_private(path, f"{text}\n".encode())))


@session.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export; - is standard input.")],
    as_id: Annotated[str | None, typer.Option("--as", help="Store it under another id.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Save it over the existing session.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Store an exported session, from here or from another language, as a new one.

    Status 4 if its id is taken. With `--replace` it becomes the next version of the existing
    session. Where the export is redacted, the existing keys of models stay.
    """
    given = _read(file)
    header = given.header.changed(version=0, session_id=as_id or given.session_id)

    async def store_it(store: SessionStore) -> AgentSession:
        there = await store.raw(header.session_id) if replace else None
        if there is None:
            return await store.create(given.changed(header=header))
        try:
            known = await store.load(header.session_id)
        except CorruptState:
            known = None  # the import repairs it
        created_at = known.header.created_at if known else there.born
        known_as = header.changed(version=there.version, created_at=created_at)
        with_keys = given.with_keys_of(known) if known else given
        return await store.save(with_keys.changed(header=known_as))

    if _has_clear_keys(given):
        print("redis-state: the keys of models are stored in clear", file=sys.stderr)
    _print_stored(_with_store(url, store_it), as_json=as_json)


@session.command()
def diff(
    one: Side,
    other: Side,
    dates: Annotated[bool, typer.Option("--dates", help="Compare dates, too.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Compare the definition and state of two sessions, without id and version.

    Each side is a session's id or the file of an export. Write ./NAME for a file whose name could
    be an id. Status 0 if they are the same, 1 if not.
    Try: `redis-state session export ID -o before.json`, later `redis-state session diff
    before.json ID`.
    """
    first, second = (_side(side, url) for side in (one, other))
    found = list(differences(first, second, dates=dates))
    if as_json:
        written = [each.to_dict() for each in found]
        _print_json({"same": not found, "differences": written})
    else:
        for each in found:
            print(each)
        if not found:
            print("They are the same.")
    if found:
        raise typer.Exit(ExitCode.FAILED)


def _raw(session_id: str, url: str | None, *, with_keys: bool) -> dict[str, Any]:
    async def read(store: SessionStore) -> RawSession:
        found = await store.raw(session_id)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    found = _with_store(url, read)
    for problem in found.problems:
        print(f"redis-state: {_shown(problem)}", file=sys.stderr)
    return found.to_dict(with_keys=with_keys)


def _has_clear_keys(given: AgentSession) -> bool:
    configs = given.definition.llm_config, given.state.llm_config
    keys = [key for each in configs if isinstance(each, LlmConfig) for key in each.secrets]
    return not all(is_sealed(key) for key in keys)


def _facts(found: AgentSession) -> dict[str, Any]:
    state, header = found.state, found.header.to_dict()
    signal = state.stop_signal()
    return header | {
        "agentId": state.agent_id,
        "executions": state.execution_count,
        "execution": state.execution.execution_id if state.execution else None,
        "executionStatus": state.status,
        "steps": state.step_count,
        "tokens": state.usage.total,
        "messages": sum(len(section.messages) for section in state.store.sections),
        "stopSignal": signal and str(signal),
        "errors": "; ".join(f"{error.class_}: {error.message}" for error in state.errors),
        "finalResponse": state.final_response.strip(),
    }


def _side(side: str, url: str | None) -> dict[str, Any]:
    is_id = side == "" or is_session_id(side)
    found = _with_store(url, lambda store: store.get(side)) if is_id else _read(side)
    return or_exit(found.redacted().to_dict)


def _read(file: str) -> AgentSession:
    """Read an export. Ends the command if it cannot be read."""

    def read() -> AgentSession:
        name = "standard input" if file == "-" else file
        try:
            data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as error:
            raise CallerError(f"{name} cannot be read: {error.strerror}") from None
        try:
            given: Any = codec.decode(data)
        except codec.DecodeError as error:
            raise CallerError(f"{name} is not JSON: {error}") from None
        if not isinstance(given, dict):
            raise CallerError(f"{name} is no session: an object is needed")
        return AgentSession.from_dict(cast("Mapping[str, Any]", given))

    return or_exit(read)


def _with_store(
    url: str | None,
    work: Callable[[SessionStore], Awaitable[T]],
    *,
    making: Making | None = None,
) -> T:
    async def do() -> T:
        async with RedisStateStore.from_url(url) as store:
            return await work(SessionStore(store))

    return run(do(), making=making)


def _print_stored(stored: AgentSession, *, as_json: bool) -> None:
    if as_json:
        _print_json(stored.header.to_dict())
    else:
        print(f"{stored.session_id} (version {stored.version})")


def _cell(value: object) -> Text:
    return Text("" if value is None else _shown(str(value)))


def _shown(text: str) -> str:
    # Text of a model or a user must not control the terminal.
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _print_json(value: object) -> None:
    print(json.dumps(value))
