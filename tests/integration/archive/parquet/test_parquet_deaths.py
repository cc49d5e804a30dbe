"""Who changes the files of an archive is killed at each call: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the parquet extra")

from tests.support.deaths import Recorder, sweep
from tests.support.sizes import sizes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("stride", sizes(199, 1))
async def test_who_changes_files_dies_at_each_call(
    tmp_path: Path, stride: int, record_property: Recorder
) -> None:
    argument = {"folder": str(tmp_path)}
    deaths = await sweep("die_filing", argument, stride=stride, record=record_property)
    phases = {"write", "compact", "retain", "retain compacted", "forget"}
    assert {death["phase"] for death in deaths} == phases
    if stride == 1:
        trips = {death["trip"] for death in deaths}
        assert trips == {"get", "create", "names", "delete", "link", "unlink"}
