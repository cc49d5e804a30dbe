"""The ``redis-state`` command."""

from __future__ import annotations

from redis_state.cli.main import main

main()
