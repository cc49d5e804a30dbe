"""Adapters for hosts. A module that needs its host's package is imported only with it.

An adapter makes a run of its host the handler of a task. It needs few calls of `TaskContext`, each
under a key that every run of the task makes again.

- `keyed_step` makes a call of a model or a tool once. `effect_id` is its key outside.
- `open_pause` asks, and `wait_for` waits for the decision without a worker.
- `emit` publishes an update once for its ``key``; `text` streams.
- `checkpoint` ends the run of a cancelled task.
- The task's lease fences what the handler writes (`fence`). What several tasks share needs a lease
  of its own: `langgraph.threads.claims` is an example.
- `keyed_branch`, `pass_keyed_branches` and `pass_keyed_pauses` are for a host that resumes from a
  state of its own. `pass_keyed_steps` is for steps whose keys a fork does not have.

`docs/guides/new-host.md` has an adapter in 30 lines. `redis_state.testing.conformance` checks one.
"""
