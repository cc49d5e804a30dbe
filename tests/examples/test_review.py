"""The review as its user runs it: a process of its own, on real files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

for _needed in ("arq", "typer", "rich", "markdown_it"):
    pytest.importorskip(_needed, reason="needs the worker and the cli extras")

from examples.review.outcome import INFORMATION, assign_roles  # noqa: E402
from redis_state import RedisStateStore, Settings  # noqa: E402
from tests.support.demos import (  # noqa: E402
    Ran,
    are_gone,
    end,
    start,
    stated_until,
    stopped,
    without_lifetime,
    workers_in,
)
from tests.support.processes.forkserver import ForkedProcess  # noqa: E402
from tests.support.servers.faults import Proxy, certificate, tls_server_context  # noqa: E402
from tests.support.sizes import sizes  # noqa: E402

pytestmark = pytest.mark.slow
# As few workers as the demo takes; the first tests run as many as it has by itself.
FEW = ("--workers", "2")
DOCUMENTS = {
    "README.md": "# Read me\n\nSee [the guide](docs/guide.md) and [nothing](docs/none.md).\n",
    "docs/guide.md": "# Guide\n\n## One\n\nText.\n\n## Two\n\n[up](../README.md#read-me)\n",
    "docs/other.md": "# Other\n\nText.\n",
    "docs/more.md": "# More\n\nSee <https://example.org>.\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Without names the review takes documents beside its folder too: there are none of other tests.
    here = tmp_path / "here"
    for name, text in DOCUMENTS.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return here


async def begin(folder: Path, *arguments: str, **options: Any) -> ForkedProcess:
    return await start(folder, "examples.review", "--pace", "0", *arguments, stdin=True, **options)


async def demo(folder: Path, *arguments: str, answers: str = "", **options: Any) -> Ran:
    return await end(await begin(folder, *arguments, **options), answers)


@pytest.mark.parametrize("workers_forked", sizes(reduced=True, full=False))
async def test_every_claim_of_the_review_holds(folder: Path, *, workers_forked: bool) -> None:
    before = {name: (folder / name).read_bytes() for name in DOCUMENTS}
    ran = await demo(folder, "--json", *DOCUMENTS, workers_forked=workers_forked)
    assert ran.status == 0, ran.err
    outcome = ran.outcome
    assert outcome["ok"] is True
    assert outcome["problems"] == []
    documents = outcome["documents"]
    assert [document["name"] for document in documents] == list(DOCUMENTS)
    assert outcome["updates_seen"] == outcome["updates_written"]
    assert outcome["updates_seen"] == sum(document["updates"] for document in documents)
    informed, redirected, cancelled, plain = documents
    assert informed["result"]["notes"] == [INFORMATION]
    assert redirected["result"]["policy"] == "strict"
    assert (cancelled["status"], cancelled["result"]) == ("CANCELLED", None)
    moved: list[str] = []
    for document in (informed, redirected, plain):
        assert document["status"] == "COMPLETE"
        assert document["decision"] is True
        report, copy = document["result"]["written"]
        assert (folder / "demo-output" / report).read_text(encoding="utf-8")
        assert (folder / "demo-output" / copy).read_text(encoding="utf-8")
        moved += [document["name"]] if document["paused_by"] != document["resumed_by"] else []
    assert moved
    assert outcome["resumed_elsewhere"] == moved
    assert outcome["flow"]["found"] == {"COMPLETE": 3, "CANCELLED": 1}
    assert 1 <= outcome["flow"]["most_running"] <= outcome["flow"]["limit"]
    assert outcome["flow"]["occurrences"]
    assert informed["findings"] >= 1
    assert INFORMATION in (folder / "demo-output" / informed["result"]["written"][0]).read_text(
        encoding="utf-8"
    )
    assert {name: (folder / name).read_bytes() for name in DOCUMENTS} == before
    assert len(ran.workers) >= 4
    await are_gone(ran.workers)


async def test_with_chaos_others_take_over_what_a_killed_worker_was_reviewing(folder: Path) -> None:
    ran = await demo(folder, "--json", "--chaos", *DOCUMENTS)
    assert ran.status == 0, ran.err
    outcome = ran.outcome
    left = [document for document in outcome["documents"] if document["left_by"]]
    assert outcome["taken_over"] == [document["name"] for document in left] != []
    for document in left:
        assert document["left_by"] == outcome["killed"] != document["taken_over_by"]
    assert outcome["updates_seen"] == outcome["updates_written"]
    assert f"killing worker {outcome['killed']} (-9)" in ran.err
    await are_gone(ran.workers)


# In full only: the trial before it holds what became of the tasks, the next ones hold the table.
@pytest.mark.full
async def test_with_chaos_the_table_shows_who_took_over(folder: Path) -> None:
    ran = await demo(folder, "--chaos", "README.md", COLUMNS="80")
    assert ran.status == 0, ran.err
    assert re.search(r"README\.md +approved +pid \d+ +pid \d+ +pid \d+ +pid \d+", ran.out)
    assert "1 taken over from the worker that was killed" in ran.out


async def test_a_person_decides_line_by_line_and_silence_is_no(folder: Path) -> None:
    names = ("docs/guide.md", "README.md")
    ran = await demo(folder, "--json", "--ask", *FEW, *names, answers="y\n")
    assert ran.status == 0, ran.err
    decisions = sorted(document["decision"] for document in ran.outcome["documents"])
    assert decisions == [False, True]
    for document in ran.outcome["documents"]:
        assert len(document["result"]["written"]) == (2 if document["decision"] else 1)
    assert ran.err.count("[Y/n]") == 2


@pytest.mark.parametrize("names", sizes(["README.md"], []))
async def test_without_json_it_ends_with_a_table(folder: Path, names: list[str]) -> None:
    ran = await demo(folder, *FEW, *names, COLUMNS="80")
    assert ran.status == 0, ran.err
    assert "paused by" in ran.out
    assert re.search(r"README\.md +approved +pid \d+ +pid \d+ +\d+ +\d+", ran.out)
    assert "each seen once and in order" in ran.out
    assert "; the limit is 6." in ran.out
    assert max(map(len, ran.out.splitlines()[-12:-2])) <= 80


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (["nope.md"], "no such document: nope.md"),
        (["empty"], "no Markdown documents in empty"),
        (["README.md", "--out", "README.md"], "no folder can be made at"),
        (["README.md", "--url", "http://example.org"], "unknown scheme 'http'"),
        (["README.md", "--workers", "1"], "--workers"),
    ],
)
async def test_a_wrong_call_ends_with_status_2(
    folder: Path, arguments: list[str], stated: str
) -> None:
    (folder / "empty").mkdir()
    ran = await demo(folder, *arguments)
    assert ran.status == 2
    assert stated in " ".join(ran.err.replace("│", " ").split())
    assert "Traceback" not in ran.err


async def test_an_unreachable_server_ends_with_status_5_and_no_password(
    folder: Path, unused_tcp_port: int
) -> None:
    url = f"redis://ann:s3cret@127.0.0.1:{unused_tcp_port}/0"
    ran = await demo(folder, "README.md", "--url", url, REDIS_STATE_CALL_TIMEOUT_S="0.5")
    assert ran.status == 5
    assert f"127.0.0.1:{unused_tcp_port}" in ran.err
    assert "s3cret" not in ran.out + ran.err
    assert "Traceback" not in ran.err
    assert ran.workers == []


@pytest.mark.role("any", why="the demo has a namespace of its own")
async def test_over_tls_too_a_server_that_others_use_is_left_as_it_was(
    folder: Path, store: RedisStateStore, settings: Settings
) -> None:
    before = await without_lifetime(store)
    cert, key = certificate(folder, "IP:127.0.0.1")
    target = settings.url.get_secret_value()
    async with Proxy(target, tls=tls_server_context(cert, key)) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        ran = await demo(folder, "--json", "--url", url, *FEW, *DOCUMENTS)
        assert proxy.accepted > 0
    assert ran.status == 0, ran.err
    assert await without_lifetime(store) <= before


# All three signals reach the same pool. The others: `tests/integration/cli/serving/test_demo.py`.
@pytest.mark.parametrize("how", sizes(signal.SIGINT, signal.SIGKILL))
async def test_nothing_is_left_when_it_is_stopped(folder: Path, how: signal.Signals) -> None:
    process = await begin(folder, "--json", "--ask", *FEW, "README.md")
    stated = await stated_until(process, "[Y/n]")
    assert len(workers_in(stated)) >= 2
    await stopped(process, how, stated)


async def test_it_fails_when_a_worker_dies(folder: Path, settings: Settings) -> None:
    url = settings.url.get_secret_value()
    process = await begin(folder, "--json", "--ask", *FEW, "--url", url, "README.md")
    stated = await stated_until(process, "[Y/n]")
    os.kill(workers_in(stated)[-1], signal.SIGKILL)
    # The question stays open: with an answer all might end before anybody notices.
    async with asyncio.timeout(60):
        assert await process.wait() == 1
        out, _ = await process.communicate()
    problems = json.loads(out)["problems"]
    assert re.match(r"worker \S+ ended with status -9", problems[0])


def test_documents_elsewhere_are_named_by_as_much_as_tells_them_apart(tmp_path: Path) -> None:
    here = tmp_path / "here"
    paths = [here / "a" / "x.md", tmp_path / "b" / "x.md", tmp_path / "c" / "x.md"]
    paths.append(tmp_path / "c" / "y.md")
    names = [review.name for review in assign_roles(paths, here)]
    assert names == ["a/x.md", "b/x.md", "c/x.md", "y.md"]
