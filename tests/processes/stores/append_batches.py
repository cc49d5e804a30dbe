"""Append numbered batches of a producer to a stream, each until it is answered; print how often."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable
from redis_state.models.streams import ProducerBatch

_RETRY_S = 0.05


async def main(argument: dict[str, Any]) -> int:
    """Append ``count`` batches under an epoch; count the answers of batches that were there."""
    producer, repeated = argument["producer"], 0
    options = {"namespace": argument["namespace"], "call_timeout_s": 2}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        for number in range(argument["count"]):
            data = f"{producer} {argument['epoch']} {number}\n".encode()
            batch = ProducerBatch(producer, argument["epoch"], number)
            while True:
                try:
                    done = await store.streams.append(
                        argument["path"], data, content_type="text/plain", batch=batch
                    )
                except BackendUnavailable:
                    await asyncio.sleep(_RETRY_S)
                    continue
                repeated += done.repeated
                break
            if number == 0:
                print("begun", flush=True)  # noqa: T201
    return repeated


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
