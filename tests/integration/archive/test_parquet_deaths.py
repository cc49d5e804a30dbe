"""Who changes the files of an archive is killed at each call: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from tests.support.deaths import DEATHS, Recorder
from tests.support.servers.faults import run_processes
from tests.support.sizes import sizes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("stride", sizes(199, 1))
async def test_who_changes_files_dies_at_each_call(
    tmp_path: Path, stride: int, record_property: Recorder
) -> None:
    arguments = [
        {
            "folder": str(tmp_path),
            "stride": stride,
            "edge": edge,
            "first": max(1, (1 + 2 * number) * stride // 4),
        }
        for number, edge in enumerate(("before", "after"))
    ]
    found = await run_processes("die_filing", arguments, timeout_s=3500)
    deaths = [death for results in found for death in results]
    record_property(DEATHS, len(deaths))
    assert [death for death in deaths if death["problems"]] == []
    phases = {"write", "compact", "retain", "retain compacted", "forget"}
    assert {death["phase"] for death in deaths} == phases
    assert all(results for results in found)
    if stride == 1:
        trips = {death["trip"] for death in deaths}
        assert trips == {"get", "create", "names", "delete", "link", "unlink"}
