"""Keys of tasks: records, journals, leases, pauses, groups, jobs and schedules."""

from __future__ import annotations

from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout
from redis_state.transport.keys.names import call_key, is_pause_id, pause_id_of, token_digest


class TaskLayout(KeyLayout):
    """Keys of tasks: records, journals, leases, pauses, groups, jobs and schedules."""

    __slots__ = ()

    def task(self, session_id: str, task_id: str) -> str:
        """hash: version, write, order, status, document, priority, result, error, progress,
        updated_at; saves, job, job:<n>, queue, attempts, crashes, handed_back, dead, format,
        parent, parent_order, isolate, spent_ms, spent_updates, recorded, attributes, due, due_at,
        flow_key, sent; interrupts, gathers, items, item_bytes, latest, item:<n>; pause_entry,
        pause_token, pause_write, waits_for, waits_box, waits_until, waits_ms, epoch: one task.
        `active_task_ttl`, while paused after the pause's deadline; `finished_task_ttl` once
        terminal; up to an eighth longer after a host's save.
        """
        return self._key("session_id", session_id, f"task:{escape('task_id', task_id)}")

    def tasks(self, session_id: str) -> str:
        """zset: task_id -> expiry in us: a session's tasks; byte FF and the digest of a token ->
        minus its expiry in ms: its open pauses. As long as its longest-lived task.
        """
        return self._key("session_id", session_id, "tasks")

    def turn(self, session_id: str) -> str:
        """zset: task_id -> its place in the line in ms: the tasks of a session that run in turn and
        may be unfinished. Twice `active_task_ttl` after the last of them was made or inspected.
        """
        return self._key("session_id", session_id, "turn")

    def gathering(self, session_id: str) -> str:
        """hash: name -> task_id: the tasks of a session whose input is open; name:item -> task_id:
        the items that tasks have; =name:item -> their digests; ``:items`` zset: name, name:item ->
        until when in ms.
        `active_task_ttl` after the last item, and the longest wait.
        """
        return self._key("session_id", session_id, "gathering")

    def children(self, session_id: str, task_id: str) -> str:
        """zset: task_id -> expiry in us: the tasks that a task has spawned. Twice
        `active_task_ttl` after each run of the task comes to spawn them; until a later task of
        its id is made.
        """
        return self._key("session_id", session_id, f"children:{escape('task_id', task_id)}")

    def journal(self, session_id: str, task_id: str) -> str:
        """hash: <kind>:<name>#<n> -> JSON, part:<number>:<entry> -> bytes, end:<child> -> JSON,
        lane:<name> -> JSON, took:<n> -> JSON, decided:<entry> -> JSON, versions, entries;
        value:<key> -> JSON, reply:<request> -> JSON, mail:<n>:<box> -> JSON, mailed:<message> ->
        digest, box:<box>, due:<entry>, place:<entry>, asks:<box>, mail, values: a task's journal:
        steps, in chunks if large, pauses, ends of its children, published updates and values, taken
        steering, messages; ``:live`` channel. Like the task.
        """
        return self._key("session_id", session_id, f"journal:{escape('task_id', task_id)}")

    def lease(self, session_id: str, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which worker runs a task. Kept as long as an
        active task may live: also the last epoch, so that the next one is greater. Five minutes
        after a run began to wait: then the task's record has the last epoch.
        """
        return self._key("session_id", session_id, f"lease:{escape('task_id', task_id)}")

    def session_token(self, token: str) -> str | None:
        """hash: state, payload, task, order, opened, expires, schema, approvals, rejections,
        escalate, escalated, seat:<actor>, vote:<actor> -> JSON, claim:<actor>, claim, actor, at,
        decision, timer: a pause of a worker's task, named by the token's digest. ``timer`` is
        there if it waits for time alone, which is no question. A seat has its state: open,
        approved, rejected, delegated or retired. Behind it stands the time in ms, then the number
        of the vote or the new actor. Its timeout, then `resolved_token_ttl`.
        """
        pause_id = token if is_pause_id(token) else pause_id_of(token)
        if pause_id is None:
            return None
        scope, _, digest = pause_id.rpartition(":")
        return f"{self.namespace}:v1:{{{scope}}}:token:{digest}"

    def open_pauses(self) -> str:
        """zset: key of a token -> expiry in us: all open pauses. As long as their tokens."""
        return f"{self.namespace}:v1:{{/pauses}}:open-pauses"

    def opened_pauses(self) -> str:
        """zset: key of a token -> opening in ms: the same pauses, in that order. Like the last."""
        return f"{self.namespace}:v1:{{/pauses}}:opened-pauses"

    def pause(self, token: str) -> str:
        """hash: like a session's token: a host's pause, in a slot of its own, named by the token's
        digest. `pause_ttl`, then `resolved_token_ttl`.
        """
        return self._key("token", token_digest(token), "pause")

    def dead_tasks(self) -> str:
        """zset: session and task -> expiry in us: tasks given up: their workers kept dying, the
        server kept refusing them, or no worker could read them. As long as the last one.
        """
        return f"{self.namespace}:v1:{{/dead}}:dead-tasks"

    def group(self, session_id: str, group_id: str) -> str:
        """hash: version, write, order, status, document, report, reported, pending, failed,
        places, sealed, ended, <move> -> call; =<task> -> places and outcome; +<patch> -> place:
        a group of tasks. `active_task_ttl`, or `finished_task_ttl` once over.
        """
        return self._key("session_id", session_id, f"group:{escape('group_id', group_id)}")

    def groups(self, session_id: str) -> str:
        """zset: group_id -> expiry in us: a session's groups. As long as the longest-lived."""
        return self._key("session_id", session_id, "groups")

    def group_names(self, session_id: str) -> str:
        """hash: turn and name -> group_id: groups that are open. `active_task_ttl` after a new
        one.
        """
        return self._key("session_id", session_id, "group-names")

    def job(self, job_id: str) -> str:
        """hash: version, write, order, document, next, interval, enabled, fired, ended; of a claim
        occurrence, `asked`, begun, attempts, and its lease: owner, claim, epoch, expires, length: a
        scheduled job. `jobs_ttl` beyond its next occurrence.
        """
        return self._own("jobs", f"job:{escape('job_id', job_id)}")

    def jobs(self) -> str:
        """zset: job_id -> expiry in us: all scheduled jobs. As long as the last one."""
        return self._own("jobs", "jobs")

    def jobs_of(self, session_id: str) -> str:
        """zset: job_id -> expiry in us: a session's scheduled jobs. As long as its last one."""
        return self._own("jobs", f"jobs-of:{escape('session_id', session_id)}")

    def jobs_due(self) -> str:
        """zset: job_id -> next occurrence in us: enabled jobs. As long as the last job."""
        return self._own("jobs", "jobs-due")

    def job_runs(self, job_id: str) -> LogKeys:
        """stream: runs of a job; ``:ids`` hash: fingerprint -> n. `job_runs_ttl`, trimmed."""
        return self._log_at(self._own("jobs", f"job-runs:{escape('job_id', job_id)}"))

    def schedule(self, schedule_id: str) -> str:
        """hash: version, write, order, definition, paused, after, outbox, last, skipped, fired,
        triggers: a schedule. `schedules_ttl` after a save or a worker's look, which comes once a
        day at least until the schedule has ended.
        """
        part = escape("schedule_id", schedule_id)
        return f"{self.namespace}:v1:{{/schedules}}:schedule:{part}"

    def schedules(self) -> str:
        """zset: schedule_id -> expiry in us: all schedules. As long as the last one."""
        return f"{self.namespace}:v1:{{/schedules}}:schedules"

    def schedules_due(self) -> str:
        """zset: schedule_id -> when a worker must look at it, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self.namespace}:v1:{{/schedules}}:schedules-due"

    def call(self, beside: str, call: str) -> str:
        """string: the packed reply of a call that removes or overwrites, for its repetition; in the
        slot of what it is about. `call_timeout_s` and a minute.
        """  # noqa: D401
        return call_key(beside, call)
