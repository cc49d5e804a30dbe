"""Every run of the suite is the same, so a checkout that was green is green for everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers.faults import run_python

ROOT = Path(__file__).resolve().parents[3]
# What a run draws: in the order of its tests, an example, and what `random` gives.
DRAWS = """
import random

from hypothesis import given, strategies as st


def test_examples():
    drawn = []

    @given(st.integers(), st.text())
    def draw(number, text):
        drawn.append((number, text))

    draw()
    print("DRAWN", len(drawn), hash(tuple(number for number, _ in drawn)))


def test_random():
    print("DRAWN", random.random())
""" + "".join(f"\n\ndef test_{n}():\n    print('DRAWN {n}')\n" for n in range(8))


async def drawn(folder: Path, **environment: str) -> list[str]:
    """Run these tests as the suite's own are run; list what they have drawn."""
    (folder / "test_draws.py").write_text(DRAWS)
    own = ("-s", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", "pyproject.toml")
    reported = await run_python(
        *("-m", "pytest", *own, "--rootdir", str(folder), str(folder)),
        environment=environment,
    )
    return [line.lstrip(".") for line in reported.splitlines() if "DRAWN" in line]


@pytest.mark.slow
async def test_two_runs_draw_the_same_and_only_a_search_draws_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("REDIS_STATE_FUZZ", raising=False)
    first = await drawn(tmp_path)
    assert len(first) == 10
    assert await drawn(tmp_path) == first
    found = await drawn(tmp_path, REDIS_STATE_FUZZ="1")
    assert found != first
    assert sorted(found) != sorted(first)
    assert [line for line in first if line.startswith("DRAWN 25 ")]
