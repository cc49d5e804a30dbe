"""The PenguiFlow example as its user runs it, and what it counts as a failure."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.demos import end, start
from tests.support.processes import children
from tests.support.servers.faults import importing

for _needed in ("arq", "typer", "rich"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

if TYPE_CHECKING:
    from examples.penguiflow.driver import Plan

RUN = "import runpy; runpy.run_module('examples.penguiflow', run_name='__main__', alter_sys=True)"
WITHOUT = "import sys; sys.modules['penguiflow'] = None; " + RUN
DOCUMENTS = ["README.md", "guide.md", "a[b]c.md"]


async def demo(folder: Path, *arguments: str, code: str = RUN) -> tuple[int, str, str]:
    for name in DOCUMENTS:
        (folder / name).write_text(f"# {name}\n\n## Part\n\nText.\n", encoding="utf-8")
    options = [*arguments, *DOCUMENTS]
    if code == RUN:
        ran = await end(await start(folder, "examples.penguiflow", *options, COLUMNS="80"))
        return ran.status, ran.out, ran.err
    fresh = children.run(
        [sys.executable, "-c", code, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env=importing(COLUMNS="80"),
    )
    return fresh.returncode, fresh.stdout, fresh.stderr


@pytest.mark.slow
async def test_every_planner_resumes_in_another_process(tmp_path: Path) -> None:
    pytest.importorskip("penguiflow.state", reason="needs the published package")
    status, out, err = await demo(tmp_path, "--json", "--workers", "2")
    assert status == 0, err
    outcome: dict[str, Any] = json.loads(out)
    assert outcome["ok"] is True
    assert [plan["name"] for plan in outcome["plans"]] == DOCUMENTS
    for plan in outcome["plans"]:
        first, last = plan["ran_in"]
        assert first != last
        assert plan["steps"] == ["outline", "ask", "publish"]
        assert (plan["published"], plan["second_approval"]) == (1, "refused")
    log = (tmp_path / "demo-output" / "published.log").read_text(encoding="utf-8")
    pids = {json.loads(line)["task"]: json.loads(line)["pid"] for line in log.splitlines()}
    resumed = [int(plan["ran_in"][1].rpartition(":")[2]) for plan in outcome["plans"]]
    assert [pids[f"plan-{number}"] for number in range(3)] == resumed


# The next test draws the same table without processes.
@pytest.mark.full
@pytest.mark.slow
async def test_without_json_it_ends_with_a_table(tmp_path: Path) -> None:
    pytest.importorskip("penguiflow.state", reason="needs the published package")
    status, out, err = await demo(tmp_path, "--workers", "2")
    assert status == 0, err
    row = r"a\[b\]c\.md +\d+ +\d+ +outline ask publish +once +refused"
    assert re.search(row, out), out
    assert "resumed in another process, its trajectory intact" in out


@pytest.mark.parametrize(
    ("code", "arguments", "stated"),
    [
        (WITHOUT, [], "not installed: pip install penguiflow"),
        (RUN, ["nope.md"], "no such document: nope.md"),
    ],
)
async def test_a_wrong_call_ends_with_status_2(
    tmp_path: Path, code: str, arguments: list[str], stated: str
) -> None:
    if code is RUN:
        pytest.importorskip("penguiflow.state", reason="needs the published package")
    status, _, err = await demo(tmp_path, *arguments, code=code)
    assert status == 2
    assert stated in err
    assert "Traceback" not in err


STEPS = [{"action": {"next_node": name}} for name in ("outline", "ask", "publish")]


@pytest.fixture
def good() -> Plan:
    """A planner that paused in one process, and published in another."""
    pytest.importorskip("penguiflow.state", reason="needs the published package")
    from examples.penguiflow.driver import Plan  # noqa: PLC0415 - needs the package

    return Plan(
        task_id="plan",
        name="plan",
        path=Path("plan"),
        status="COMPLETE",
        ran_in=["host:1", "host:2"],
        before=STEPS[:2],
        after=STEPS,
        published=1,
        second_approval="refused",
    )


def test_the_table_has_a_row_for_each_planner(
    good: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console  # noqa: PLC0415 - needs the cli extra

    from examples.penguiflow.driver import Plans, plans_table  # noqa: PLC0415 - needs the package

    outcome = Plans([replace(good, name="a[b]c.md")], [], Path(), 1.0)
    Console(width=80).print(plans_table(outcome))
    row = r"a\[b\]c\.md +1 +2 +outline ask publish +once +refused"
    assert re.search(row, capsys.readouterr().out)


def test_it_says_what_is_not_as_it_should_be(good: Plan) -> None:
    assert list(good.problems()) == []
    wrong: list[dict[str, Any]] = [
        {"status": "FAILED"},
        {"after": STEPS[:2]},
        {"before": [{"action": {"next_node": "other"}}, STEPS[1]]},
        {"before": []},
        {"ran_in": ["host:1", "host:1"]},
        {"published": 2},
        {"second_approval": "accepted"},
    ]
    for change in wrong:
        assert list(replace(good, **change).problems()), change
