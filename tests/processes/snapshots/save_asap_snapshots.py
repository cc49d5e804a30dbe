"""Save snapshots of one task from four threads of this process; print what could not be read."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from redis_state.integrations.asap import create_snapshot_store
from redis_state.integrations.asap.package import load


def main(url: str, namespace: str, versions: list[int]) -> list[int]:
    """Save each version and read it back."""
    kind = load("asap.models.entities").StateSnapshot
    with create_snapshot_store(url=url, namespace=namespace) as store:

        def save(version: int) -> bool:
            snapshot = kind(
                id=str(version),
                task_id="shared",
                version=version,
                data={"n": version},
                created_at=datetime.now(UTC),
            )
            store.save(snapshot)
            return bool(store.get("shared", version) == snapshot)

        with ThreadPoolExecutor(4) as threads:
            read = list(threads.map(save, versions))
    return [version for version, same in zip(versions, read, strict=True) if not same]


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
