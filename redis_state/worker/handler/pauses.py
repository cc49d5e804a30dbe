"""The pauses of a running task, for its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, Unpack

from redis_state.errors import InvalidField, TokenUnknown
from redis_state.serialization import codec
from redis_state.worker.handler.calls import ContextCalls
from redis_state.worker.tasks.execution.inbox import refuse_in_undo
from redis_state.worker.tasks.waitpoints.forms import PauseForm
from redis_state.worker.tasks.waitpoints.pause_model import (
    Decision,
    Pause,
    PauseOptions,
    PauseRequest,
    asks,
    decision_of,
    pause_token,
)
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses

DECIDED = "decided:"
SHORT_SLEEP = timedelta(seconds=1)


class ContextPauses(ContextCalls):
    """The part of a handler's context that waits for decisions, and for time."""

    _pauses: dict[str, dict[str, Any]]
    _decided_before: set[str]
    _tokens: dict[str, str]
    _forms: dict[str, PauseForm | None]

    def open_pause(
        self,
        reason: str = "await_input",
        payload: Any = None,
        *,
        reveal: bool = True,
        **options: Unpack[PauseOptions],
    ) -> Coroutine[Any, Any, Pause]:
        """Open a pause without waiting for it. From now on it can be decided.

        A later run gets the same pause. It is found by its ``key``, else by its ``name`` (the
        reason by default) and its order among those of that name. Its content stays as first given.
        A name is counted by this call, and belongs to the asyncio task that makes it, as in `step`.

        The CHECKPOINT update carries the pause's public id. The text of the token is not stored.
        With ``reveal=False`` only the token decides, and the handler sends it itself.

        ``timeout`` is `task_pause_ttl` by default, `active_task_ttl` at most. When it expires,
        ``on_timeout`` applies: ``"fail"`` raises PauseTimeout where the handler waits, ``"reject"``
        rejects, ``"resume"`` approves with ``default``. A checkpoint.

        ``schema`` is the form of an approval's value: a JSON schema of the draft 2020-12, or a type
        that pydantic understands, as which the handler gets the value. A value that does not fit is
        refused before the decision. A rejection may have any value.

        ``of`` names the actors who decide: one of them, or as many ``approvals`` as are given, one
        vote each. Then ``rejections`` reject it, by default so many that the approvals are out of
        reach. ``escalate`` names further deciders, after some time. The decision has the votes.

        Errors: InvalidField, also for a name that two asyncio tasks use; ConfigError for a JSON
        schema without the extra ``forms``; TaskCancelled, LeaseLost.
        """
        return self._open_pause(*self._ask_pause(reason, payload, options, reveal=reveal))

    async def wait_for(self, pause: Pause | str) -> Decision:
        """Return a pause's decision; if there is none yet, end the run and wait for it.

        Take what `open_pause` returned, or its token. The worker is free while the task waits. The
        decision starts the next run, on any worker, in which this call returns. A checkpoint.
        While a step of another asyncio task works, the run does not end. A decision that comes
        meanwhile is returned in this run.

        Errors: PauseTimeout; InvalidDecision if the value breaks a rule of the pause's type that
        its JSON schema cannot say, such as a validator's; TokenUnknown if this task has not opened
        the pause; TaskCancelled, LeaseLost.
        """
        refuse_in_undo("pause")
        token = pause.token if isinstance(pause, Pause) else pause
        entry = self._entry_of(token)
        await self.checkpoint()
        if self._pauses[entry]["state"] != "decided":
            await self._steps.rehearsed(f"the decision of {entry}")
            pauses = TaskPauses(self.store)
            with self._ending_if_paused():
                note = await self._steps.open.end_run(
                    partial(pauses.wait, self._started, entry),
                    partial(pauses.look, self._started, entry),
                )
            if note is None:
                raise self._end_paused()
            self._pauses[entry] |= note
        await self._learn_decision(entry)
        return decision_of(entry, self._pauses[entry], self._forms.get(entry))

    def pause(
        self, reason: str = "await_input", payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Open a pause and wait for its decision. See `open_pause` and `wait_for`."""
        return self._pause(*self._ask_pause(reason, payload, options))

    def approval(
        self, question: str, payload: Any = None, **options: Unpack[PauseOptions]
    ) -> Coroutine[Any, Any, Decision]:
        """Pause until the question is approved or rejected. Like `pause`."""
        content = {"question": question, "details": codec.plain(payload)}
        return self.pause("await_approval", content, **options)

    async def sleep(self, delay: timedelta, *, name: str = "sleep") -> None:
        """Sleep, for seconds or for months: `active_task_ttl` at most. The worker is free.

        A later run continues, in any worker. A sweeper finds the end of the time, within a second
        or so. It asks nobody: the pause is in no list, and nothing but time ends it. A second or
        less is slept in this run. A checkpoint. Errors: InvalidField; TaskCancelled, LeaseLost.
        """
        is_delay = isinstance(delay, timedelta)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_delay or delay < timedelta(0):
            raise InvalidField("delay", "needs a timedelta from 0")
        if delay > self.store.settings.active_task_ttl:
            raise InvalidField("delay", "is longer than active_task_ttl, for which a task is kept")
        if delay <= SHORT_SLEEP:
            await self._steps.do(name, asyncio.sleep, (delay.total_seconds(),), {})
            return
        options: PauseOptions = {"name": name, "timeout": delay, "on_timeout": "resume"}
        await self._pause(*self._ask_pause("sleep", None, options, timer=True))

    def pass_keyed_pauses(self) -> set[str]:
        """Take the pauses of earlier runs that have a ``key`` as used, and return their keys.

        For a handler that resumes from a state of its own: it does not open them again.
        """
        begin, end = "pause:", "#key"
        found = {
            entry
            for entry in self._started.journal
            if entry.startswith(begin) and entry.endswith(end)
        }
        for entry in found:
            self._steps.pass_over(entry)
        return {entry.removeprefix(begin).removesuffix(end) for entry in found}

    async def _learn_decision(self, entry: str) -> None:
        """Record a decision that arrived during this run, before the handler acts on it.

        Another process wrote the decision. A rollback of the server may lose it, and keep what this
        run does next.
        """
        learned = DECIDED + entry
        if learned in self._started.journal or entry in self._decided_before or self._rehearses:
            return
        self._decided_before.add(entry)
        note, payloads = self._pauses[entry], self.store.base.payloads
        await self._steps.record(learned, payloads.write(note))

    def _ask_pause(
        self,
        reason: str,
        payload: Any,
        options: PauseOptions,
        *,
        reveal: bool = True,
        timer: bool = False,
    ) -> tuple[str, PauseRequest]:
        """Assign a pause its number now, in call order."""
        refuse_in_undo("pause")
        requested = PauseRequest.read(
            self.store.settings, reason, payload, options, reveal=reveal, timer=timer
        )
        key = options.get("key")
        if key is not None:
            entry = self._steps.ask_keyed(f"pause:{key}#key")
        else:
            entry = self._steps.ask("pause", requested.name)
            self._steps.check_same(entry, asks(requested.reason, requested.payload))
        self._forms[entry] = requested.form
        return entry, requested

    async def _open_pause(self, entry: str, requested: PauseRequest) -> Pause:
        with self._calling(entry):
            await self.checkpoint()
            note = self._pauses.get(entry)
            if note is None:
                await self._steps.check_call(entry)
                await self._steps.rehearsed(entry)
            if (note is None or note["state"] != "decided") and not self._rehearses:
                with self._ending_if_paused():
                    self._pauses[entry] = await TaskPauses(self.store).open(
                        self._started,
                        entry,
                        requested,
                        self._steps.lane(),
                        place=self._steps.place_of(entry),
                    )
        return Pause(requested.name, self._token(entry))

    async def _pause(self, entry: str, requested: PauseRequest) -> Decision:
        return await self.wait_for(await self._open_pause(entry, requested))

    def _token(self, entry: str) -> str:
        token = pause_token(self._started, entry)
        self._tokens[token] = entry
        return token

    def _entry_of(self, token: str) -> str:
        if token not in self._tokens:
            for entry in self._pauses:
                self._token(entry)
        if token not in self._tokens:
            raise TokenUnknown(expired=False)
        return self._tokens[token]
