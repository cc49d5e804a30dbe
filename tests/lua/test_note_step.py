from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Fence, Reply, Scripts, Word
from tests.looking import HOUR, lives, no, ok, task_keys


async def test_the_first_result_of_a_step_is_kept(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)

    async def note(result: bytes, epoch: int = 1) -> Reply:
        return await scripts.note_step(
            task.journal,
            fence=Fence(task.lease, epoch),
            entry="step:\ud800#1",
            result=result,
            ttl_ms=HOUR,
        )

    assert await note(b"1") == no(Word.LOST, 0)
    assert await lives(scripts, task.journal) == [-2]
    await scripts.acquire_lease(task.lease, owner="o", duration_ms=HOUR, keep_ms=HOUR)
    for result in (b"1", b"1", b"2"):
        assert await note(result) == ok(b"1")
    assert await note(b"3", epoch=2) == no(Word.LOST, 1)
    assert 0 < (await lives(scripts, task.journal))[0] <= HOUR
