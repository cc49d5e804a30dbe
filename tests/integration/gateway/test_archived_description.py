"""What is only in the archive is answered as the gateway's description says."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("schemathesis", reason="needs schemathesis")

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.archive import open_archive
from tests.integration.gateway.test_description import EXCLUDED, SCHEMA, Fuzzed
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.archived.archives import archive_and_expire


def test_what_is_archived_is_answered_as_described(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    url = SecretStr(tmp_path_factory.mktemp("archive").as_uri())
    with asyncio.Runner() as runner:
        opened = Fuzzed(settings.model_copy(update={"archive_url": url}), runner, is_empty=True)
        try:
            opened.run(_archive(opened.store))
            for name in ("read_task", "read_tree", "read_timeline", "list_snapshots"):
                operation = SCHEMA.find_operation_by_id(name)
                for task in ("publish", "fail"):
                    case = operation.Case(path_parameters={"session": SESSION, "task": task})
                    response = opened.call(case)
                    assert response.is_success, response.text
                    case.validate_response(response, excluded_checks=EXCLUDED)
            for name in ("read_session", "read_trees", "read_updates"):
                case = SCHEMA.find_operation_by_id(name).Case(path_parameters={"session": SESSION})
                response = opened.call(case)
                assert response.is_success, response.text
                case.validate_response(response, excluded_checks=EXCLUDED)
            case = SCHEMA.find_operation_by_id("find_tasks").Case(query={"archived": "only"})
            response = opened.call(case)
            assert {each["task_id"] for each in response.json()["tasks"]} == {"publish", "fail"}
            case.validate_response(response, excluded_checks=EXCLUDED)
        finally:
            opened.close()


async def _archive(store: RedisStateStore) -> None:
    """Leave two tasks in the archive alone."""
    archive = open_archive(store.settings)
    await archive.prepare()
    async with client_of(store) as client:
        for task in ("publish", "fail"):
            await client.submit(task, 1, session_id=SESSION, task_id=task)
            await client.wait(SESSION, task, timeout_s=30)
    await archive_and_expire(store, archive, "publish", "fail")
    await archive.aclose()
