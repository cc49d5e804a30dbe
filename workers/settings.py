"""Settings of the deployed pool.

arq workers.settings.WorkerSettings        one worker under arq's own runner
redis-state worker workers.settings:worker one that outlives restarts of the server
"""

from __future__ import annotations

from redis_state.worker import AgentWorker
from workers.jobs import HANDLERS

worker = AgentWorker(HANDLERS)
WorkerSettings = worker.arq_settings()
