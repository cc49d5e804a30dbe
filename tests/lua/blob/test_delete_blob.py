from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, fields, ok


async def test_a_deleted_blob_leaves_nothing(scripts: Scripts, keys: Keys) -> None:
    blobs = keys.artifacts("p")
    for name in ("a", "b"):
        await scripts.commit_blob(
            blobs,
            blobs.upload("u"),
            blob_id=name,
            ref=b"{}",
            size=0,
            chunks=0,
            trace="t",
            ttl_ms=HOUR,
            strategy="lru",
            limits=(9, 9, 9, 9),
            victims=[],
        )
    assert await scripts.delete_blob(blobs, blob_id="a") == ok(1, 1)
    assert await scripts.delete_blob(blobs, blob_id="a") == ok(0, 1)
    assert await fields(scripts, blobs.about) == {"=b": b"0 t", ":": b"1 0", ":t": b"1 0"}
    assert await scripts.delete_blob(blobs, blob_id="b") == ok(1, 0)
    assert await ask(scripts, "EXISTS", blobs.expiry, blobs.use, blobs.about) == 0
