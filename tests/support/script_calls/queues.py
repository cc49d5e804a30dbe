"""One call of every script of queues, watch lists and schedules."""

from __future__ import annotations

from collections.abc import Awaitable

from redis_state.scripts import (
    EndedJob,
    EndedJobs,
    Fence,
    Reply,
    Scripts,
)
from redis_state.transport.key_groups import ScheduleKeys
from redis_state.transport.keys import Keys
from tests.support.script_calls.names import SESSION, Call, job_keys
from tests.support.scripts.keys import (
    task_keys,
)
from tests.support.scripts.replies import HOUR
from tests.support.scripts.tasks import (
    job_payload,
    move_job,
    queued_job,
)


def _save_job(scripts: Scripts, keys: Keys) -> Awaitable[Reply]:
    return scripts.save_job(
        job_keys(keys),
        {"document": b"{}"},
        write="w",
        ttl_ms=HOUR,
        job_id=SESSION,
        next_us=1,
        interval_us=None,
        enabled=True,
    )


CALLS: dict[str, Call] = {
    "defer_job": lambda scripts, keys: scripts.defer_job(
        keys.queue("q"),
        payload=job_payload(keys),
        id=queued_job(keys).id,
        at_ms=1,
        earlier_ms=1,
        sooner=True,
        life_ms=HOUR,
    ),
    "retire_claim": lambda scripts, keys: scripts.retire_claim(
        task_keys(keys, SESSION), version=1, claimed=1
    ),
    "claim_due": lambda scripts, keys: scripts.claim_due(keys.watch(0), limit=1, hold_ms=HOUR),
    "settle_claim": lambda scripts, keys: scripts.settle_claim(
        keys.watch(0), mark=b"1.5", entries=[(b"e", HOUR), (b"f", None)]
    ),
    "save_job": _save_job,
    "claim_job": lambda scripts, keys: scripts.claim_job(
        keys.job(SESSION), keys.jobs_due(), owner="o", lease_ms=HOUR, job_id=SESSION, up_to_us=1
    ),
    "start_job": lambda scripts, keys: scripts.start_job(
        keys.job(SESSION), Fence(keys.job(SESSION), 1, "o"), lease_ms=HOUR
    ),
    "end_job": lambda scripts, keys: scripts.end_job(
        job_keys(keys), Fence(keys.job(SESSION), 1, "o"), job_id=SESSION, ttl_ms=HOUR
    ),
    "save_schedule": lambda scripts, keys: scripts.save_schedule(
        ScheduleKeys(keys.schedule(SESSION), keys.schedules(), keys.schedules_due()),
        {"paused": b"0"},
        write="w",
        expected=0,
        ttl_ms=HOUR,
        schedule_id=SESSION,
        check_ms=0,
        sooner=False,
        restart=True,
    ),
    "queue_job": lambda scripts, keys: scripts.queue_job(
        keys.queue("q"), payload=job_payload(keys), job=queued_job(keys)
    ),
    "claim_jobs": lambda scripts, keys: scripts.claim_jobs(keys.queue("q"), limit=1, life_ms=HOUR),
    "claim_parked": lambda scripts, keys: scripts.claim_parked(
        keys.queue("q"), limit=1, life_ms=HOUR, lanes=["v:h/1;"]
    ),
    "park_job": lambda scripts, keys: scripts.park_job(
        keys.queue("q"),
        payload=job_payload(keys),
        id=queued_job(keys).id.encode(),
        claimed=b"1",
        place=b"1",
        lane="v:h/1;",
        version=1,
        life_ms=HOUR,
    ),
    "look_parked": lambda scripts, keys: scripts.look_parked(
        keys.queue("q").keyed, lanes=1, limit=1
    ),
    "end_jobs": lambda scripts, keys: scripts.end_jobs(
        keys.queue("q"),
        EndedJobs([EndedJob(job_payload(keys), queued_job(keys).id.encode(), b"1", None)]),
        life_ms=HOUR,
    ),
    "ensure_job": lambda scripts, keys: scripts.ensure_job(
        keys.queue("q"),
        payload=job_payload(keys),
        picked=f"arq:in-progress:{queued_job(keys).id}",
        earlier_payload=job_payload(keys),
        job=queued_job(keys),
        earlier=queued_job(keys).id,
        orphan=False,
        version="1",
        patience_ms=0,
    ),
    "move_job": lambda scripts, keys: move_job(scripts, keys, earlier_ms=1),
    "withdraw_jobs": lambda scripts, keys: scripts.withdraw_jobs(
        keys.queue("q"), line="1:s", jobs=[queued_job(keys).id]
    ),
    "list_claims": lambda scripts, keys: scripts.list_claims(
        keys.queue("q").claims, after=0, patience_ms=0, limit=1
    ),
    "look_agenda": lambda scripts, keys: scripts.look_agenda(keys.queue("q")),
    "look_queue": lambda scripts, keys: scripts.look_queue(keys.queue("q"), most=2, most_keys=2),
    "look_keys": lambda scripts, keys: scripts.look_keys(
        keys.queue("q").keyed, keys.queue("q"), after=b"", most=2
    ),
    "clear_queue": lambda scripts, keys: scripts.clear_queue(
        keys.queue("q"), history=keys.queue_history()
    ),
    "know_history": lambda scripts, keys: scripts.know_history(
        keys.queue_history(), id="i", picking=True
    ),
    "know_queue": lambda scripts, keys: scripts.know_queue(
        keys.queue_names(), queue=b"q", life_ms=HOUR, at_ms=None
    ),
    "hasten_entries": lambda scripts, keys: scripts.hasten_entries(
        keys.watch(0),
        walker="w",
        hold_ms=HOUR,
        history="h",
        store="",
        nodes="",
        all=False,
        first_ms=0,
        step_ms=1,
        entries=[b"e"],
    ),
    "drop_claims": lambda scripts, keys: scripts.drop_claims(
        keys.queue("q"), before_ms=1, tasks=[("t", 1, 1)]
    ),
    "set_flow": lambda scripts, keys: scripts.set_flow(keys.queue("q"), {"limit": b"1"}),
    "take_rate": lambda scripts, keys: scripts.take_rate(
        keys.rates(), settings=keys.rate_settings(), name="r", rate="1 1000", cost=1
    ),
    "set_rate": lambda scripts, keys: scripts.set_rate(
        keys.rate_settings(), name="r", rate="1 1000"
    ),
    "skip_time": lambda scripts, keys: scripts.skip_time(
        keys.test_clock(), others=[f"{keys.test_clock()}:other"], until_ms=1
    ),
    "watch_entry": lambda scripts, keys: scripts.watch_entry(
        keys.watch(0), entry=b"e", delay_ms=HOUR, stands="later"
    ),
}
