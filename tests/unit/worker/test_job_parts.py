"""A task's handler, input and secret in its record, in parts that a server keeps compact."""

import pytest

from redis_state.stores.sessions.job_parts import (
    JOB_FIELDS,
    job_fields,
    job_in,
    job_of,
    with_whole_job,
)


@pytest.mark.parametrize(
    ("size", "parts"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3), (512, 8), (513, 1)]
)
def test_every_size_is_read_as_it_was_written(size: int, parts: int) -> None:
    document = bytes(n % 251 for n in range(size))
    fields = job_fields(document)
    assert list(fields) == list(JOB_FIELDS[:parts])
    assert parts == 1 or all(0 < len(part) <= 64 for part in fields.values())
    among = {"status": b"PENDING", **fields}
    assert job_of(among) == document
    assert job_in([fields.get(name) for name in JOB_FIELDS]) == document
    named = {name.encode(): value for name, value in among.items()}
    assert with_whole_job(named) == {b"status": b"PENDING", b"job": document}


def test_a_hosts_task_has_none() -> None:
    with pytest.raises(KeyError):
        job_of({"status": b"PENDING"})
    assert job_in([None] * len(JOB_FIELDS)) is None
    assert with_whole_job({b"status": b"PENDING"}) == {b"status": b"PENDING"}
