from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore
from redis_state.agents import AgentDefinition, AgentSession, LlmConfig, SessionStore
from redis_state.cli.tree import differences
from tests.agents import fresh, stepped

Ran: TypeAlias = subprocess.CompletedProcess[str]
Cli: TypeAlias = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture
def cli(store: RedisStateStore, tmp_path: Path) -> Cli:
    """Run ``redis-state session`` on the test's namespace."""
    settings = store.settings
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry),
        "COLUMNS": "200",
        "REDIS_STATE_URL": settings.url.get_secret_value(),
        "REDIS_STATE_NAMESPACE": settings.namespace,
    }

    def run(*arguments: str, stdin: str | None = None) -> Ran:
        return subprocess.run(
            [sys.executable, "-m", "redis_state.cli.main", "session", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env=environment,
            input=stdin,
        )

    async def ran(*arguments: str, stdin: str | None = None) -> Ran:
        return await asyncio.to_thread(run, *arguments, stdin=stdin)

    return ran


@pytest.fixture
def sessions(store: RedisStateStore) -> SessionStore:
    return SessionStore(store)


def keyed(session_id: str) -> AgentSession:
    model = LlmConfig(api_url="https://x", api_key="s3cr3t", model="m")
    definition = AgentDefinition(name="coder", llm_config=model)
    session = AgentSession.fresh(definition, session_id=session_id)
    return session.with_state(stepped(session.state.with_user_message("hello [red]\x1b[31m"), 1))


async def test_every_command_teaches(cli: Cli) -> None:
    said = await cli("--help")
    assert said.returncode == 0
    for command in ("list", "show", "fork", "export", "import", "diff"):
        assert command in said.stdout
    told = await cli("diff", "--help")
    assert "Status 0 if they are the same" in told.stdout


async def test_sessions_are_listed_by_page_and_filter(cli: Cli, sessions: SessionStore) -> None:
    for number in range(3):
        await sessions.create(fresh(f"s{number}", name="ann"))
    await sessions.create(fresh("b", name="bob").suspended())
    first = json.loads((await cli("list", "--json", "--agent", "ann", "--count", "2")).stdout)
    assert [header["sessionId"] for header in first["sessions"]] == ["s2", "s1"]
    assert list(first["sessions"][0])[:4] == ["sessionId", "parentId", "status", "version"]
    rest = await cli("list", "--json", "--agent", "ann", "--after", first["cursor"])
    assert [each["sessionId"] for each in json.loads(rest.stdout)["sessions"]] == ["s0"]
    shown = await cli("list", "--status", "suspended")
    assert "bob" in shown.stdout
    assert "ann" not in shown.stdout
    assert "More: --after" in (await cli("list", "--count", "1")).stdout
    assert (await cli("list", "--after", "nonsense")).returncode == 2
    assert (await cli("list", "--status", "sleepy")).returncode == 2


async def test_a_session_is_shown_without_its_key_and_cannot_steer_the_terminal(
    cli: Cli, sessions: SessionStore
) -> None:
    await sessions.create(keyed("a"))
    shown = await cli("show", "a")
    facts = dict(line.split(None, 1) for line in shown.stdout.splitlines() if " " in line.strip())
    assert facts["executionStatus"].strip() == "in_progress"
    assert (facts["steps"].strip(), facts["tokens"].strip()) == ("1", "15")
    assert "hello" not in shown.stdout
    said = await cli("show", "a", "--messages")
    assert "[messages] user: hello [red]\ufffd[31m" in said.stdout
    whole = await cli("show", "a", "--json")
    assert json.loads(whole.stdout)["state"]["llmConfig"]["apiKey"] == "[redacted]"
    assert "s3cr3t" not in shown.stdout + said.stdout + whole.stdout
    missing = await cli("show", "nobody")
    assert (missing.returncode, missing.stderr) == (3, "redis-state: no session 'nobody'\n")
    assert (await cli("show", "a:b")).returncode == 2


async def test_a_fork_is_a_session_of_its_own(cli: Cli, sessions: SessionStore) -> None:
    source = await sessions.create(keyed("a"))
    assert (await cli("fork", "a", "--as", "b")).stdout == "b (version 1)\n"
    forked = await sessions.get("b")
    assert forked.header.parent_id == "a"
    assert forked.state.execution is None
    assert forked.state.store == source.state.store
    assert (await cli("fork", "a", "--as", "b")).returncode == 4
    assert json.loads((await cli("fork", "a", "--json")).stdout)["parentId"] == "a"


async def test_an_export_is_imported_as_it_was(
    cli: Cli, sessions: SessionStore, tmp_path: Path
) -> None:
    session = await sessions.create(keyed("a"))
    printed = await cli("export", "a", "--with-keys")
    assert json.loads(printed.stdout) == session.to_dict()
    assert (await cli("export", "a", "-o", "a.json")).returncode == 0
    exported = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert exported == session.redacted().to_dict()
    taken = await cli("import", "a.json")
    assert (taken.returncode, taken.stdout) == (4, "")
    assert (await cli("import", "-", "--as", "b", stdin=printed.stdout)).stdout == "b (version 1)\n"
    told = await cli("import", "-", "--as", "c", stdin=printed.stdout)
    assert told.stderr == "redis-state: the keys of models are stored in clear\n"
    copied = await sessions.get("b")
    assert copied.to_dict()["state"] == session.to_dict()["state"]
    assert copied.to_dict()["definition"] == session.to_dict()["definition"]
    replaced = await cli("import", "a.json", "--replace", "--json")
    assert json.loads(replaced.stdout)["version"] == 2
    assert replaced.stderr == ""
    # It was redacted: the keys that are there stay, but for another address.
    kept = await sessions.get("a")
    assert (kept.definition, kept.state.llm_config) == (
        session.definition,
        session.state.llm_config,
    )
    exported["definition"]["llmConfig"]["apiUrl"] = "https://elsewhere"
    await cli("import", "-", "--replace", stdin=json.dumps(exported))
    assert (await sessions.get("a")).definition.redacted() == (await sessions.get("a")).definition
    assert (await cli("import", "a.json", "--replace", "--as", "new")).returncode == 0
    assert (await cli("export", "a", "-o", "no/such/folder.json")).returncode == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"s3cr3t', "standard input is not JSON"),
        ("[]", "an object is needed"),
        ('{"header": {"sessionId": "s3cr3t:"}}', "header.sessionId"),
        ('{"header": {}, "definition": {}, "state": {"agentId": "s3cr3t"}}', "header.sessionId"),
    ],
)
async def test_what_is_no_session_is_refused_without_what_stands_in_it(
    given: str, said: str, cli: Cli
) -> None:
    ran = await cli("import", "-", stdin=given)
    assert ran.returncode == 2, ran.stderr
    assert "redis-state: " in ran.stderr
    assert "s3cr3t" not in ran.stderr
    assert "Traceback" not in ran.stderr
    assert said in ran.stderr
    assert (await cli("import", "nowhere.json")).returncode == 2


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
    assert (await cli("diff", "a", "a")).returncode == 0
    assert (await cli("diff", "a", "./a")).returncode == 2
    assert (await cli("diff", "a", "n" * 300)).returncode == 3
    assert (await cli("diff", "a", "n" * 300 + ".json")).returncode == 2


async def test_sessions_are_compared_place_by_place(cli: Cli, sessions: SessionStore) -> None:
    session = await sessions.create(keyed("a"))
    await cli("export", "a", "-o", "before.json")
    same = await cli("diff", "before.json", "a")
    assert (same.returncode, same.stdout) == (0, "They are the same.\n")
    await sessions.save(session.with_state(session.state.with_metadata(seen=True)))
    ran = await cli("diff", "before.json", "a", "--json")
    assert ran.returncode == 1
    assert json.loads(ran.stdout) == {
        "same": False,
        "differences": [{"place": "state.context.metadata", "one": [], "other": {"seen": True}}],
    }
    dated = json.loads((await cli("diff", "before.json", "a", "--json", "--dates")).stdout)
    assert "state.updatedAt" in [each["place"] for each in dated["differences"]]
    later = await sessions.get("a")
    await sessions.save(later.with_state(later.state.with_user_message("more")))
    lines = (await cli("diff", "before.json", "a")).stdout.splitlines()
    assert lines[0] == 'state.context.metadata: [] -> {"seen": true}'
    assert lines[1].startswith("state.context.messageStore.sections[0].messages[2]: nothing -> {")
    assert (await cli("diff", "a", "nobody")).returncode == 3
