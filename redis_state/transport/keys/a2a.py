"""Keys of A2A tasks, of which one owner's share a slot."""

from __future__ import annotations

from redis_state.transport.key_groups import A2ABooks, LogKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout


class A2ALayout(KeyLayout):
    """Keys of A2A tasks, of which one owner's share a slot."""

    __slots__ = ()

    def a2a_task(self, scope: str, task_id: str) -> str:
        """hash: state, phase, version, at, created, creator, updated, announce and the host's
        fields: one A2A task. `active_task_ttl` after a write, `finished_task_ttl` once ended;
        PenguiFlow's `a2a_task_ttl` after a write. A tombstone as long as the options say.
        """
        return self._a2a(scope, "task", task_id)

    def a2a_books(self, scope: str) -> A2ABooks:
        """zset: order and id: a scope's A2A tasks as they are listed; ``:places`` hash: id ->
        context, state and time; ``:expiry`` zset: id -> when. As long as the longest-lived of them.
        """
        return A2ABooks(f"{self.namespace}:v1:{{{scope}}}:a2a-tasks")

    def a2a_events(self, scope: str, task_id: str) -> LogKeys:
        """stream: events of an A2A task, each at its version; ``:ids`` hash: write -> version;
        ``:live`` channel. Half as long again as the task, trimmed by a write.
        """
        return self._log_at(self._a2a(scope, "events", task_id))

    def a2a_lease(self, scope: str, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which server works on an A2A task. A lease
        longer than the task.
        """
        return self._a2a(scope, "lease", task_id)

    def a2a_configs(self, scope: str, task_id: str) -> str:
        """hash: name -> number and configuration: push configurations of an A2A task. Like the
        task; `active_task_ttl` after a save while there is none.
        """
        return self._a2a(scope, "configs", task_id)

    def a2a_history(self, scope: str, task_id: str) -> str:
        """list: JSON: messages of PenguiFlow's A2A tasks. Like the task."""
        return self._a2a(scope, "history", task_id)

    def a2a_artifacts(self, scope: str, task_id: str) -> str:
        """list: JSON: artifacts of PenguiFlow's A2A tasks, as they were added. Like the task."""
        return self._a2a(scope, "artifacts", task_id)

    def _a2a(self, scope: str, kind: str, task_id: str) -> str:
        return f"{self.namespace}:v1:{{{scope}}}:a2a-{kind}:{escape('task_id', task_id)}"

    def a2a_config_scopes(self, task_id: str) -> str:
        """zset: owner's scope -> expiry in us: who may have push configurations of an A2A task of
        this id, written before they are. `active_task_ttl` after a save or a dispatch.
        """
        place = f"a2a-configs/{escape('task_id', task_id)}"
        return f"{self.namespace}:v1:{{{place}}}:a2a-config-scopes"

    def a2a_queue(self, task_id: str) -> LogKeys:
        """stream: events of a queue of the legacy A2A handler; ``:ids`` hash; ``:live``
        channel. One hour.
        """
        place = f"a2a-queue/{escape('task_id', task_id)}"
        return self._log_at(f"{self.namespace}:v1:{{{place}}}:a2a-queue")

    def a2a_queue_lease(self, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which server feeds a queue. One hour after
        its lease.
        """
        return f"{self.namespace}:v1:{{a2a-queue/{escape('task_id', task_id)}}}:a2a-queue-lease"

    def a2a_page_secret(self) -> str:
        """text: what the page tokens of A2A lists are signed with. 30 days after its last use."""
        return f"{self.namespace}:v1:{{/a2a-pages}}:a2a-page-secret"

    def a2a_watch(self, shard: int) -> str:
        """zset: A2A task -> when its owner's lease may have run out, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self.namespace}:v1:{{/a2a-watch-{shard:02d}}}:watch"
