from __future__ import annotations

import json
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore, Settings
from redis_state.agents import AgentDefinition, AgentSession, FrozenMap, LlmConfig, SessionStore
from redis_state.cli.sessions.json_diff import differences
from redis_state.cli.sessions.session import session as app
from redis_state.errors import CorruptState
from tests.support.agents.sessions import fresh, stepped
from tests.support.commands import Ran, begin, end
from tests.support.commands import cli as run_command

Cli: TypeAlias = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture
def cli(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run ``redis-state session`` on the test's namespace, in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return partial(run_command, settings, app=app)


@pytest.fixture
def sessions(store: RedisStateStore) -> SessionStore:
    return SessionStore(store)


def keyed(session_id: str) -> AgentSession:
    model = LlmConfig(api_url="https://x", api_key="s3cr3t", model="m")
    definition = AgentDefinition(name="coder", llm_config=model)
    session = AgentSession.fresh(definition, session_id=session_id)
    return session.with_state(stepped(session.state.with_user_message("hello [red]\x1b[31m"), 1))


async def test_every_command_teaches(cli: Cli, settings: Settings) -> None:
    stated = await end(await begin(settings, "session", "--help"))
    assert stated.status == 0
    for command in ("list", "show", "fork", "export", "import", "diff"):
        assert command in stated.out
    reported = await cli("diff", "--help")
    assert "Status 0 if they are the same" in reported.out


async def test_sessions_are_listed_by_page_and_filter(cli: Cli, sessions: SessionStore) -> None:
    for number in range(3):
        await sessions.create(fresh(f"s{number}", name="ann"))
    await sessions.create(fresh("b", name="bob").suspended())
    first = (await cli("list", "--json", "--agent", "ann", "--limit", "2")).document
    assert [header["sessionId"] for header in first["sessions"]] == ["s2", "s1"]
    assert list(first["sessions"][0])[:4] == ["sessionId", "parentId", "status", "version"]
    rest = await cli("list", "--json", "--agent", "ann", "--after", first["cursor"])
    assert [each["sessionId"] for each in rest.document["sessions"]] == ["s0"]
    long = "s" * 60
    await sessions.create(fresh(long, name="carl"))
    narrow = await cli("list", "--agent", "carl", COLUMNS="40")
    assert long in narrow.out.split()
    assert (await cli("list", "--agent", "nobody")).out == "No sessions.\n"
    shown = await cli("list", "--status", "suspended")
    assert "bob" in shown.out
    assert "ann" not in shown.out
    assert "More: --after" in (await cli("list", "--limit", "1")).out
    assert (await cli("list", "--after", "nonsense")).status == 2
    assert (await cli("list", "--status", "sleepy")).status == 2


async def test_a_session_is_shown_without_its_key_and_cannot_steer_the_terminal(
    cli: Cli, sessions: SessionStore
) -> None:
    await sessions.create(keyed("a"))
    shown = await cli("show", "a")
    facts = dict(line.split(None, 1) for line in shown.out.splitlines() if " " in line.strip())
    assert facts["executionStatus"].strip() == "in_progress"
    assert (facts["steps"].strip(), facts["tokens"].strip()) == ("1", "15")
    assert "hello" not in shown.out
    stated = await cli("show", "a", "--messages")
    assert "[messages] user: hello [red]\ufffd[31m" in stated.out
    whole = await cli("show", "a", "--json")
    assert whole.document["state"]["llmConfig"]["apiKey"] == "[redacted]"
    assert "s3cr3t" not in shown.out + stated.out + whole.out
    missing = await cli("show", "nobody")
    assert (missing.status, missing.err) == (3, "redis-state: no session 'nobody'\n")
    assert (await cli("show", "a:b")).status == 2


async def test_a_fork_is_a_session_of_its_own(cli: Cli, sessions: SessionStore) -> None:
    source = await sessions.create(keyed("a"))
    assert (await cli("fork", "a", "--as", "b")).out == "b (version 1)\n"
    forked = await sessions.get("b")
    assert forked.header.parent_id == "a"
    assert forked.state.execution is None
    assert forked.state.store == source.state.store
    assert (await cli("fork", "a", "--as", "b")).status == 4
    assert (await cli("fork", "a", "--json")).document["parentId"] == "a"


async def test_an_export_is_imported_as_it_was(
    cli: Cli, sessions: SessionStore, tmp_path: Path
) -> None:
    session = await sessions.create(keyed("a"))
    printed = await cli("export", "a", "--with-keys")
    assert printed.document == session.to_dict()
    assert (await cli("export", "a", "-o", "a.json")).status == 0
    assert (tmp_path / "a.json").stat().st_mode & 0o077 == 0
    # So it is if a file was there that others could read.
    (tmp_path / "a.json").chmod(0o644)
    assert (await cli("export", "a", "-o", "a.json")).status == 0
    assert (tmp_path / "a.json").stat().st_mode & 0o077 == 0
    exported = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert exported == session.redacted().to_dict()
    taken = await cli("import", "a.json")
    assert (taken.status, taken.out) == (4, "")
    assert (await cli("import", "-", "--as", "b", stdin=printed.out)).out == "b (version 1)\n"
    reported = await cli("import", "-", "--as", "c", stdin=printed.out)
    assert reported.err == "redis-state: the keys of models are stored in clear\n"
    copied = await sessions.get("b")
    assert copied.to_dict()["state"] == session.to_dict()["state"]
    assert copied.to_dict()["definition"] == session.to_dict()["definition"]
    replaced = await cli("import", "a.json", "--replace", "--json")
    assert replaced.document["version"] == 2
    assert replaced.err == ""
    # It was redacted: the keys that are there stay, but for another address.
    kept = await sessions.get("a")
    assert (kept.definition, kept.state.llm_config) == (
        session.definition,
        session.state.llm_config,
    )
    exported["definition"]["llmConfig"]["apiUrl"] = "https://elsewhere"
    await cli("import", "-", "--replace", stdin=json.dumps(exported))
    assert (await sessions.get("a")).definition.redacted() == (await sessions.get("a")).definition
    assert (await cli("import", "a.json", "--replace", "--as", "new")).status == 0
    assert (await cli("export", "a", "-o", "no/such/folder.json")).status == 2


async def test_an_export_is_printed_or_goes_to_a_device(
    cli: Cli, sessions: SessionStore, tmp_path: Path
) -> None:
    session = await sessions.create(keyed("a"))
    assert (await cli("export", "a", "-o", "-")).document == session.redacted().to_dict()
    assert (await cli("export", "a", "-o", "/dev/null")).status == 0
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a short look


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="needs Linux")
async def test_an_export_to_a_file_that_others_keep_rights_on_is_refused(
    cli: Cli, sessions: SessionStore
) -> None:
    await sessions.create(keyed("a"))
    refused = await cli("export", "a", "-o", "/proc/self/comm")
    assert (refused.status, refused.out) == (2, "")
    assert "/proc/self/comm cannot be written: rights of other users" in refused.err
    assert "-o - prints it" in refused.err


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ('{"s3cr3t', "standard input is not JSON"),
        ("[]", "an object is needed"),
        ('{"header": {"sessionId": "s3cr3t:"}}', "header.sessionId"),
        ('{"header": {}, "definition": {}, "state": {"agentId": "s3cr3t"}}', "header.sessionId"),
    ],
)
async def test_what_is_no_session_is_refused_without_what_stands_in_it(
    given: str, stated: str, cli: Cli
) -> None:
    ran = await cli("import", "-", stdin=given)
    assert ran.status == 2, ran.err
    assert "redis-state: " in ran.err
    assert "s3cr3t" not in ran.err
    assert "Traceback" not in ran.err
    assert stated in ran.err
    assert (await cli("import", "nowhere.json")).status == 2


async def test_only_a_states_own_dates_are_left_out_of_a_comparison() -> None:
    def session(moment: str, *, of_a_tool: str = "x", key: str = "k") -> dict[str, Any]:
        given = {"duration": of_a_tool, "startedAt": of_a_tool}
        run = {"tool_call": {"arguments": given}, "startedAt": moment, "completedAt": moment}
        response = {"createdAt": moment}
        step = {"toolExecutions": [run], "inferenceResponse": response}
        execution = {"startedAt": moment, "stepExecutions": [{"step": step, "duration": moment}]}
        context = {"metadata": {"completedAt": of_a_tool, key: 1}}
        state = {"createdAt": moment, "execution": execution, "context": context}
        return {"definition": {"metadata": {"createdAt": of_a_tool}}, "state": state}

    assert list(differences(session("1"), session("2"), dates=False)) == []
    assert len(list(differences(session("1"), session("2"), dates=True))) == 6
    found = list(differences(session("1"), session("1", of_a_tool="y"), dates=False))
    assert len(found) == 4
    odd = differences(session("1"), session("1", key="\x1b[2J"), dates=False)
    assert all("\x1b" not in str(each) for each in odd)


async def test_a_name_is_a_session_before_it_is_a_file(
    cli: Cli, sessions: SessionStore, tmp_path: Path
) -> None:
    await sessions.create(keyed("a"))
    (tmp_path / "a").write_text("{}", encoding="utf-8")
    assert (await cli("diff", "a", "a")).status == 0
    assert (await cli("diff", "a", "./a")).status == 2
    assert (await cli("diff", "a", "n" * 300)).status == 3
    assert (await cli("diff", "a", "n" * 300 + ".json")).status == 2


async def test_sessions_are_compared_place_by_place(cli: Cli, sessions: SessionStore) -> None:
    session = await sessions.create(keyed("a"))
    await cli("export", "a", "-o", "before.json")
    same = await cli("diff", "before.json", "a")
    assert (same.status, same.out) == (0, "They are the same.\n")
    await sessions.save(session.with_state(session.state.with_metadata(seen=True)))
    ran = await cli("diff", "before.json", "a", "--json")
    assert ran.status == 1
    assert ran.document == {
        "same": False,
        "differences": [{"place": "state.context.metadata", "one": [], "other": {"seen": True}}],
    }
    dated = (await cli("diff", "before.json", "a", "--json", "--dates")).document
    assert "state.updatedAt" in [each["place"] for each in dated["differences"]]
    later = await sessions.get("a")
    await sessions.save(later.with_state(later.state.with_user_message("more")))
    lines = (await cli("diff", "before.json", "a")).out.splitlines()
    assert lines[0] == 'state.context.metadata: [] -> {"seen": true}'
    assert lines[1].startswith("state.context.messageStore.sections[0].messages[2]: nothing -> {")
    assert (await cli("diff", "a", "nobody")).status == 3


async def damage(store: RedisStateStore, name: str, old: bytes, new: bytes) -> None:
    """Put something else into a field of the stored session."""
    key, sender = store.base.keys.agent_session("a"), store.transport.sender
    data: bytes = await sender.send("HGET", key, name, repeatable=True)
    assert old in data
    await sender.send("HSET", key, name, data.replace(old, new, 1), repeatable=True)


def ensure_queued(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


async def test_a_session_that_cannot_be_read_is_exported_raw_mended_and_stored_again(
    cli: Cli, sessions: SessionStore, store: RedisStateStore
) -> None:
    execution_id = "00000001-0000-4000-8000-00000000000a"
    state = stepped(keyed("a").state.with_new_execution(execution_id), 2)
    whole = await sessions.create(keyed("a").with_state(state))
    # As sessions stand that earlier versions of this library saved.
    await damage(store, "head", execution_id.encode(), b"order-42")
    with pytest.raises(CorruptState, match="executionId"):
        await sessions.get("a")
    refused = await cli("export", "a")
    assert (refused.status, refused.out) == (1, "")

    raw = await cli("export", "a", "--raw", "--with-keys", "-o", "a.json")
    assert raw.status == 0
    assert "state.execution.executionId: a UUID is needed" in raw.err
    ensure_queued(Path("a.json"), "order-42", execution_id)
    mended = await cli("import", "a.json", "--replace")
    assert mended.status == 0, mended.err
    found = await sessions.get("a")
    assert (found.definition, found.state) == (whole.definition, whole.state)
    assert found.version == 2
    assert (await cli("export", "missing", "--raw")).status == 3


async def test_a_raw_export_loses_nothing_of_a_session_and_shows_no_key(
    cli: Cli, sessions: SessionStore, store: RedisStateStore
) -> None:
    state = keyed("a").state
    for number in range(12):
        state = stepped(state, number)
    model = LlmConfig(api_key="s3cr3t", query_params=FrozenMap(sig=["s3cr3t"]))
    await sessions.create(keyed("a").with_state(state.with_llm_config(model)))
    whole = (await cli("export", "a")).document
    assert (await cli("export", "a", "--raw")).document["state"]["execution"] == (
        whole["state"]["execution"]
    )
    key, sender = store.base.keys.agent_session("a"), store.transport.sender
    await damage(store, "s:1", b"{", b"not JSON {")
    await damage(store, "m0:3", b"{", b'{"odd": 1, ')
    await sender.send("HDEL", key, "s:2", repeatable=True)
    raw = await cli("export", "a", "--raw")
    assert "s3cr3t" not in raw.out + raw.err
    assert "s:2 is missing" in raw.err
    assert "stepExecutions[1]: not JSON" in raw.err
    steps = raw.document["state"]["execution"]["stepExecutions"]
    were = whole["state"]["execution"]["stepExecutions"]
    assert steps[1].startswith("not JSON {")
    assert [steps[0], *steps[2:]] == [were[0], *were[3:]]
    stated = raw.document["state"]["context"]["messageStore"]["sections"][0]["messages"]
    assert (len(stated), stated[3]["odd"]) == (14, 1)

    await damage(store, "head", b"{", b"s3cr3t {")
    await damage(store, "definition", b'"llmConfig":{', b'"llmConfig":[{')
    await damage(store, "definition", b'},"tools"', b'}],"tools"')
    raw = await cli("export", "a", "--raw")
    assert "s3cr3t" not in raw.out + raw.err
    assert raw.document["state"] == "[redacted]"
    assert {"s:0", "s:11", "m0:11"} <= raw.document["parts"].keys()
    shown = await cli("export", "a", "--raw", "--with-keys")
    assert shown.document["state"].startswith("s3cr3t {")
    found = await sessions.raw("a")
    assert found is not None
    assert "s3cr3t" not in repr(found)
    assert await sessions.raw("b") is None
