"""Who erases is killed at each round trip: a repetition leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from tests.support.deaths import Recorder, sweep

pytestmark = [
    pytest.mark.worker,
    pytest.mark.slow,
    pytest.mark.role("any", why="it reads the names of all keys"),
]
# Some of the fault points.
POINTS = {
    *("SCAN", "UNLINK", "clear_task", "leave_trace", "unindex_task", "run_once"),
    *("delete_session", "find_tasks", "drop_claims"),
}


@pytest.mark.parametrize(
    ("archive_url", "stride"),
    [
        *(("postgres", 79), pytest.param("postgres", 1, marks=pytest.mark.full)),
        pytest.param("parquet", 1, marks=pytest.mark.full),
    ],
    indirect=["archive_url"],
)
@pytest.mark.timeout(3600)
async def test_who_erases_dies_at_each_round_trip(
    archiving: Settings,
    archive_url: str,
    tmp_path: Path,
    stride: int,
    record_property: Recorder,
) -> None:
    argument = {
        "url": archiving.url.get_secret_value(),
        "archive": archive_url,
        "namespace": archiving.namespace,
        "folder": str(tmp_path),
    }
    deaths = await sweep("die_forgetting", argument, stride=stride, record=record_property)
    if stride == 1:
        of_archive = "postgres" if archive_url.startswith("postgres") else "files"
        assert {death["trip"] for death in deaths} >= POINTS | {of_archive}
