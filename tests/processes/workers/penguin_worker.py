"""A worker process of a pool that runs PenguiFlow."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.integrations.penguiflow.flows import flow_handler, kept_flow_handler
from redis_state.integrations.penguiflow.planners import planner_handler
from redis_state.worker import AgentWorker
from tests.support.penguiflow.handlers import Effects, flow_of, planner_of


def main(argument: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    logging.basicConfig(level=logging.WARNING)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    effects = Effects(Path(argument["effects"]))
    plain = ["look_up", "ask", "act"]
    worker = AgentWorker(
        {
            "plan": planner_handler(planner_of(effects, plain)),
            "linger": planner_handler(planner_of(effects)),
            "flow": flow_handler(flow_of(effects)),
            "kept": kept_flow_handler(flow_of(effects), restart_after=3),
        },
        settings=settings,
        queue=argument["queue"],
        lease_s=argument.get("lease_s", 10.0),
        grace_s=argument.get("grace_s", 5.0),
        name=argument["name"],
        poll_s=0.01,
    )
    worker.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
