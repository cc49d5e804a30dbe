from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, ok


async def test_what_the_books_have_stays(scripts: Scripts, keys: Keys) -> None:
    blobs = keys.artifacts("p")

    async def put() -> None:
        await scripts.commit_blob(
            blobs,
            blobs.upload("u"),
            blob_id="a",
            ref=b"{}",
            size=0,
            chunks=0,
            trace=None,
            ttl_ms=HOUR,
            write="w",
            reference_ttl_ms=HOUR,
            strategy="lru",
            limits=(9, 9, 9, 9),
            victims=[],
        )

    there = ("EXISTS", blobs.blob("a"), blobs.reference("a"))
    await put()
    assert await scripts.drop_unlisted_blob(blobs, blob_id="a") == ok(0)
    await ask(scripts, "DEL", blobs.about)
    assert await scripts.drop_unlisted_blob(blobs, blob_id="a") == ok(1)
    await ask(scripts, "DEL", blobs.references)
    assert await scripts.drop_unlisted_blob(blobs, blob_id="a") == ok(1)
    assert await scripts.drop_unlisted_blob(blobs, blob_id="a") == ok(0)
    await put()
    assert await scripts.drop_unlisted_blob(blobs, blob_id="a") == ok(0)
    assert await ask(scripts, *there) == 2
