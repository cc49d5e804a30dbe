"""Keys of a pool: queues, workers, watch lists, the index of tasks, migration."""

from __future__ import annotations

from redis_state.transport.key_groups import QueueKeys, TaskIndexKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout
from redis_state.transport.keys.names import queue_keys, tag_of, task_index_keys, watch_key


class PoolLayout(KeyLayout):
    """Keys of a pool: queues, workers, watch lists, the index of tasks, migration."""

    __slots__ = ()

    def worker(self, worker: str) -> str:
        """hash: version, write, order, document: one worker process. Three of its intervals."""
        return f"{self.namespace}:v1:{{/workers}}:worker:{escape('worker', worker)}"

    def workers(self) -> str:
        """zset: worker -> expiry in us: the worker processes. As long as the last one's record."""
        return f"{self.namespace}:v1:{{/workers}}:workers"

    def served(self) -> str:
        """zset: queue and handler -> when a worker last had it, in ms: 10,000 at most. Ten minutes
        after a worker had one.
        """
        return f"{self.namespace}:v1:{{/workers}}:served"

    def copied(self, original: str) -> str:
        """hash: key -> digest of what a migration has copied to it. Seven days after a copy; until
        the migration is finished.
        """
        return f"{self.namespace}:moving:{tag_of(original)}"

    def copy_of(self, original: str, call: str) -> str:
        """any: what a migration copies, until all of it is there. Seven days."""
        return f"{self.copied(original)}:new:{call}{original.rpartition('}')[2]}"

    def watch(self, shard: int) -> str:
        """zset: what a process must inspect -> when, in ms: 6 * 10^12 more if it is only checked,
        10^13 if it was found ended; ``:clock`` string: the server's time at its last change;
        ``:history`` hash: history, store, nodes, walker, until: the histories of the queues, of the
        store's server and of its cluster's nodes that its entries were compared with. 400 days
        after a write.
        """
        return watch_key(self.namespace, shard)

    def archive_watch(self, shard: int) -> str:
        """zset: task -> when it must be archived, in ms; ``:clock`` string: the server's time at
        its last change. In the slot of the tasks' watch list. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive"

    def archive_sessions(self, shard: int) -> str:
        """zset: session -> when its updates must be archived, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive-sessions"

    def archive_sessions_since(self, shard: int) -> str:
        """zset: session whose updates could not be archived when they were due -> since when, in
        ms. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive-sessions-since"

    def archive_since(self, shard: int) -> str:
        """zset: task that is to be archived -> 400 days after its end, in us. As long as the last
        one.
        """
        return f"{self._watch_slot(shard)}:archive-since"

    def archive_records(self, shard: int) -> str:
        """zset: record -> when it must be archived, in ms; ``:clock`` string: the server's time at
        its last change. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive-records"

    def archive_records_since(self, shard: int) -> str:
        """zset: record that is to be archived -> since when, in ms. 400 days after a write."""
        return f"{self._watch_slot(shard)}:archive-records-since"

    def archive_retention(self) -> str:
        """hash: owner, claim, epoch, expires, length: who removes what is over from the archive,
        and when another may. Two hours after a round.
        """
        return f"{self.namespace}:v1:{{/archive}}:retention"

    def archive_cleaning(self) -> str:
        """hash: owner, claim, epoch, expires, length: who deletes what calls that died have left in
        the archive, without `archive_retention`, and when another may. Two hours after a round.
        """
        return f"{self.namespace}:v1:{{/archive}}:cleaning"

    def archive_known(self) -> str:
        """hash: id: of the archive that has what is marked as archived. 400 days after an archiver
        has compared it.
        """
        return f"{self.namespace}:v1:{{/archive}}:known"

    def archivers(self) -> str:
        """zset: process -> expiry in us: the archivers that work. A minute and a half after a
        sign of the last one.
        """
        return f"{self.namespace}:v1:{{/archive}}:archivers"

    def kept_elsewhere(self) -> str:
        """zset: ``archive`` or ``durable_events`` -> expiry in us: where more is kept than Redis
        has. 400 days after who writes there gave a sign.
        """
        return f"{self.namespace}:v1:{{/archive}}:elsewhere"

    def events_watch(self, shard: int) -> str:
        """zset: trace -> when its events must be moved to PostgreSQL, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:events"

    def events_since(self, shard: int) -> str:
        """zset: trace -> since when it has events that are not in PostgreSQL, in ms. 400 days
        after a write.
        """
        return f"{self._watch_slot(shard)}:events-since"

    def _watch_slot(self, shard: int) -> str:
        return f"{self.namespace}:v1:{{/watch-{shard:02d}}}"

    def test_clock(self) -> str:
        """string: how far a test's clock is ahead of the server's, in ms. Only in namespaces of
        tests. 400 days after a move.
        """
        return self._of_namespace("clock", "shift")

    def queue(self, queue: str) -> QueueKeys:
        """zset: job id -> when it is due, in ms; ``:claims`` zset: task -> when it was claimed, in
        ms; ``:flow`` hash: its limits, 400 days after a change or a claim; ``:keyed``,
        ``:heads``, ``:turns``, ``:holders``, ``:waits``, ``:rates`` zsets and ``:owners`` hash:
        jobs with a key, and those parked for a version; ``:wake`` channel; ``arq:job:<id>``
        string: the job in arq's format.
        `active_task_ttl` after a job is due; permits 7 days after a claim.
        """
        name = self._of_namespace("queues", f"queue:{escape('queue', queue)}")
        channel = f"{name}:wake" if self.database == 0 else f"{name}:wake:{self.database}"
        return queue_keys(name, channel)

    def queue_history(self) -> str:
        """hash: id, picking: what distinguishes the history of the namespace's queues from one that
        was lost; when arq's own runner picked jobs. Likewise on the store's server, if the queues
        have another one. 400 days, extended by sweepers.
        """
        return self._of_namespace("queues", "history")

    def queue_names(self) -> str:
        """zset: queue -> until when its jobs may wait, in ms. `active_task_ttl` after a job is
        due.
        """
        return self._of_namespace("queues", "names")

    def rates(self) -> str:
        """zset: rate -> when all of it is there again, in ms. Fifteen days after a use."""
        return self._of_namespace("rates", "rates")

    def rate_settings(self) -> str:
        """hash: rate -> how much in which period, in place of what handlers give. 400 days after a
        use or a change.
        """
        return self._of_namespace("rates", "settings")

    def cron(self, name: str, at_ms: int) -> str:
        """hash: owner, epoch, expires: who runs a moment of a cron job. Two hours."""
        return self._of_namespace("cron", f"{escape('name', name)}:{at_ms}")

    @property
    def jobs_tag(self) -> str:
        """The beginning of all ids of jobs: what arq keeps of them is in the queues' slot."""
        return f"{{{escape('namespace', f'queues-{self.namespace}')}}}"

    def task_index(self, shard: int) -> TaskIndexKeys:
        """zset: ``<kind><value>``, status, time and id of a task: tasks of a worker as they are
        found, by the time of their creation, those of kind ``e`` by that of their end; ``:about``
        hash: id -> what is known of a task; ``:expiry`` zset: id -> when it is forgotten. 400 days
        after a new task; a task as long as its record.
        """
        return task_index_keys(self.namespace, shard)
