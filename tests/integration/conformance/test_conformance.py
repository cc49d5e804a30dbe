"""The adapters' hosts pass the checks of conformance, and each defect fails the check about it."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("cryptography", reason="needs the crypto extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import ConfigError, InvalidField
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing.conformance import CHECKS, CheckResult, conformance, run_check
from redis_state.testing.conformance.__main__ import main
from redis_state.testing.conformance.checks import ODD_IDS, _published
from redis_state.testing.conformance.trial import Trial, open_trial
from tests.support.conformance import bare
from tests.support.conformance.broken import BROKEN
from tests.support.processes import children, forkserver
from tests.support.servers.sets.nodes import keys_like
from tools.hosts import RECORDED

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="the checks have namespaces of their own"),
]

HOSTS = "tests.support.conformance"
ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guides" / "which-store.md"
# `make test-full` runs all, and compares them with the table.
FEW = ("kill-send", "deciders", "replay", "cancel", "ids", "encryption")
# A task's id is PenguiFlow's trace, and its own records are no payloads of tasks.
OF_FLOWS = {"same-id"}
OF_PLANNERS = {"same-id", "encryption"}


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers, which users start as interpreters of their own."""
    monkeypatch.setattr(asyncio, "create_subprocess_exec", forkserver.execute)


async def results_of(
    reference: str, settings: Settings, checks: Sequence[str] = CHECKS
) -> dict[str, CheckResult]:
    """Run a host's checks side by side."""
    url = settings.url.get_secret_value()
    running = conformance(f"{HOSTS}.{reference}", url=url, checks=checks, at_once=len(checks))
    return {each.check: each async for each in running}


@pytest.mark.parametrize(
    ("reference", "package"),
    [("agents:HOST", "pydantic_ai"), ("openai:HOST", "agents"), ("graphs:HOST", "langgraph")],
)
async def test_a_host_passes_the_checks_that_differ_most(
    settings: Settings, reference: str, package: str
) -> None:
    pytest.importorskip(package)
    results = await results_of(reference, settings, FEW)
    assert {check: str(each) for check, each in results.items()} == {
        check: f"{check:<12} passed" for check in FEW
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("reference", "package", "row", "fails"),
    [
        ("bare:HOST", "arq", "| a [handler](workers.md) of your own |", set[str]()),
        ("agents:HOST", "pydantic_ai", "| [pydantic-ai](pydantic-ai.md) |", set[str]()),
        ("openai:HOST", "agents", "| [OpenAI Agents SDK](openai-agents.md) |", set[str]()),
        ("graphs:HOST", "langgraph", "| [LangGraph](langgraph.md) |", set[str]()),
        ("flows:FLOW", "penguiflow", "| [PenguiFlow](penguiflow.md), flows |", OF_FLOWS),
        ("flows:PLANNER", "penguiflow", "| [PenguiFlow](penguiflow.md), planners |", OF_PLANNERS),
    ],
)
async def test_a_host_passes_what_its_row_says(
    settings: Settings,
    reference: str,
    package: str,
    row: str,
    fails: set[str],
    *,
    record_property: Callable[[str, object], None],
) -> None:
    pytest.importorskip(package)
    results = await results_of(reference, settings)
    assert results.keys() == set(CHECKS)
    failed = {check: each.message for check, each in results.items() if each.failed}
    assert failed.keys() == fails, failed
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (stated,) = [line for line in lines if line.startswith(row) and " of " in line]
    processes = sum(each.processes for each in results.values())
    kills = sum(each.kills for each in results.values())
    passed = f"{len(CHECKS) - len(failed)} of {len(CHECKS)}"
    record_property(
        f"{RECORDED}{row.strip('| ')}", f"{passed}, {processes} processes, {kills} killed"
    )
    assert f"| {passed} | {processes}, {kills} |" in stated


async def test_each_defect_fails_the_check_about_it(settings: Settings) -> None:
    url = settings.url.get_secret_value()

    async def fails(name: str) -> CheckResult:
        return await run_check(f"{HOSTS}.broken:{name.upper()}", BROKEN[name][0], url=url)

    results = dict(zip(BROKEN, await asyncio.gather(*map(fails, BROKEN)), strict=True))
    wrong = {
        name: str(results[name])
        for name, (_, says, _) in BROKEN.items()
        if not (results[name].failed and re.search(says, results[name].message))
    }
    assert not wrong
    caught = {check for check, _, _ in BROKEN.values()}
    assert caught == set(CHECKS)


async def test_what_a_host_skips_is_not_run_and_says_why(settings: Settings) -> None:
    results = await results_of("broken:SKIPS", settings, ["reject", "cancel"])
    assert {check: str(each) for check, each in results.items()} == {
        "reject": "reject       skipped  this host asks nobody",
        "cancel": "cancel       skipped  it cannot be cancelled",
    }
    assert not any(each.failed or each.processes for each in results.values())


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nothing", "module:NAME"),
        ("no.such.module:HOST", "cannot be imported"),
        ("no/such/file.py:HOST", "is no Python file"),
        (f"{HOSTS}.broken:BROKEN", "is not a HostUnderTest, but dict"),
        (f"{HOSTS}.broken:MISSING", "is not a HostUnderTest, but NoneType"),
    ],
)
async def test_a_reference_that_leads_to_no_host_is_refused(reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await run_check(reference, "cancel", url="redis://localhost:1/0")


async def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(InvalidField, match="'kills' is none of kill-look"):
        await run_check(f"{HOSTS}.bare:HOST", "kills", url="redis://localhost:1/0")
    with pytest.raises(InvalidField, match="skips: 'pausing' is none of"):
        await run_check(f"{HOSTS}.broken:SKIPS_UNKNOWN", "cancel", url="redis://localhost:1/0")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[children.Process]:
    """Note each process that is started."""
    noted: list[children.Process] = []

    async def noting(*command: str, **options: object) -> children.Process:
        process: children.Process = await forkserver.execute(*command, **options)
        noted.append(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noting)
    return noted


async def test_a_check_leaves_no_process(
    settings: Settings, started: list[children.Process]
) -> None:
    url = settings.url.get_secret_value()
    checks = conformance(f"{HOSTS}.bare:HOST", url=url, checks=["elsewhere", "replay"])
    # The second one is under way when the caller has seen enough.
    async for result in checks:
        assert result.outcome == "passed"
        break
    await checks.aclose()
    assert len(started) >= 3
    assert all(process.returncode is not None for process in started)


async def test_a_trial_that_is_cancelled_at_its_end_leaves_no_key_and_no_process(
    settings: Settings, started: list[children.Process]
) -> None:
    url = settings.url.get_secret_value()
    ending = asyncio.Event()
    seen: list[Trial] = []

    async def end() -> None:
        reference, host = f"{HOSTS}.bare:HOST", bare.HOST
        async with open_trial(reference, host, url=url, payload_keys=None, timeout_s=60) as trial:
            await asyncio.gather(trial.start(), trial.start())
            await trial.submit()
            seen.append(trial)
            ending.set()

    task = asyncio.create_task(end())
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    async with RedisStateStore(seen[0].settings) as store:
        assert await keys_like(store.transport, f"*{store.settings.namespace}*") == []


def test_odd_ids_are_apart_from_each_other() -> None:
    assert len({":".join(each) for each in ODD_IDS}) < len(ODD_IDS)
    assert len({"/".join(each) for each in ODD_IDS}) < len(ODD_IDS)
    assert len(set(ODD_IDS)) == len(ODD_IDS)


async def test_it_runs_on_a_command_line_with_interpreters_of_its_own(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    url = settings.url.get_secret_value()
    path = ROOT / "tests" / "support" / "conformance" / "bare.py"
    assert await main([f"{path}:HOST", "--url", url, "--check", "reject"]) == 0
    assert capsys.readouterr().out == (
        "reject       passed\n1 of 1 passed; 1 processes, of which 0 were killed\n"
    )


async def test_a_command_line_ends_with_a_status(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    url = settings.url.get_secret_value()
    asks_nobody = f"{HOSTS}.broken:ASKS_NOBODY"
    assert await main([asks_nobody, "--url", url, "--check", "reject"]) == 1
    assert "failed   the task asked nobody" in capsys.readouterr().out
    for wrong in (["nothing"], [asks_nobody, "--check", "nothing"]):
        with pytest.raises(SystemExit) as ended:
            await main(wrong)
        assert ended.value.code == 2


@pytest.mark.parametrize("cuts", [["look, draft"], ["look, ", "draft"], ["lo", "ok", ", draft"]])
def test_a_text_is_one_update_in_however_many_rows_it_came(cuts: list[str]) -> None:
    rows = [
        StateUpdate(
            session_id="s",
            task_id="t",
            update_type=UpdateType.RESULT,
            content={"text": text, "text_id": "one", "generation": "g", "part": part},
        )
        for part, text in enumerate(cuts, 1)
    ]
    told = StateUpdate(
        session_id="s", task_id="t", update_type=UpdateType.PROGRESS, content={"at": "look"}
    )
    assert _published([told, *rows]) == [
        (UpdateType.PROGRESS, "{'at': 'look'}"),
        (UpdateType.RESULT, "look, draft"),
    ]
