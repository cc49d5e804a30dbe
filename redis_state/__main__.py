"""``python -m redis_state`` is the ``redis-state`` command."""

from __future__ import annotations

from redis_state.cli.main import main

if __name__ == "__main__":
    main()
