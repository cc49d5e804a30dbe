"""Adapters with one defect each: the check that is about it must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from redis_state.models import StateUpdate, UpdateType
from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Decision, Handler, TaskContext

# What an adapter keeps in its process and not in the task.
_MEMORY: dict[str, str] = {}


class Careful:
    """An adapter without a defect, of which each part can be replaced."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand

    async def __call__(self, ctx: TaskContext) -> Any:
        """Run the errand."""
        texts = [await self.make(ctx, effect) for effect in ("look", "draft")]
        decision = await self.ask(ctx, texts)
        if not self.may_send(decision):
            return texts
        return [*texts, await self.make(ctx, "send"), decision.value]

    async def make(self, ctx: TaskContext, effect: str) -> str:
        """Make an effect, and publish its text."""
        text = await self.done(ctx, effect)
        await self.publish(ctx, text)
        return text

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Make an effect once."""
        text: str = await ctx.keyed_step("effect", effect, self.errand.effect, effect, ctx.input)
        return text

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Publish a text."""
        await ctx.progress(text)

    async def ask(self, ctx: TaskContext, texts: list[str]) -> Decision:
        """Ask for an approval."""
        return await ctx.approval("Send it?", texts)

    def may_send(self, decision: Decision) -> bool:
        """Return whether it was approved."""
        return decision.approved


class RecordsTooEarly(Careful):
    """Records that an effect is made, and makes it then."""

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Skip what an earlier run has begun."""
        begun = await ctx.keyed_step("begin", effect, lambda: ctx.epoch)
        if begun == ctx.epoch:
            await self.errand.effect(effect, ctx.input)
        return f"{effect} of {ctx.input}"


class RecordsNothing(Careful):
    """Makes each effect in each run."""

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Make it."""
        return await self.errand.effect(effect, ctx.input)


class AsksInEachRun(Careful):
    """Names its pause by what no other run has, once the answer is there."""

    async def ask(self, ctx: TaskContext, texts: list[str]) -> Decision:
        """Ask, and behind a crash again."""
        first = await super().ask(ctx, texts)
        asked = await ctx.keyed_step("asked", "run", lambda: ctx.epoch)
        if asked == ctx.epoch:
            return first
        return await ctx.pause("await_approval", ctx.input, key=f"{ctx.epoch}")


class AsksTwice(Careful):
    """Opens two pauses for one question."""

    async def ask(self, ctx: TaskContext, texts: list[str]) -> Decision:
        """Ask under two names."""
        first, second = [
            await ctx.open_pause("await_approval", texts, name=name) for name in ("a", "b")
        ]
        await ctx.wait_for(first)
        return await ctx.wait_for(second)


class DropsTheAnswer(Careful):
    """Learns that it was approved, and not what was answered."""

    async def __call__(self, ctx: TaskContext) -> Any:
        """Return the texts alone."""
        return (await super().__call__(ctx))[:3]


class TakesNoForYes(Careful):
    """Goes on whatever was decided."""

    def may_send(self, decision: Decision) -> bool:
        """Return True."""
        del decision
        return True


class AsksNobody(Careful):
    """Approves by itself."""

    async def ask(self, ctx: TaskContext, texts: list[str]) -> Decision:
        """Decide."""
        del texts
        return Decision(approved=True, value="ann says yes", actor=ctx.worker)


class Remembers(Careful):
    """Keeps what it did in its process."""

    def place(self, ctx: TaskContext, effect: str) -> str:
        """Return where it is kept."""
        return repr((ctx.task.session_id, ctx.task.task_id, effect))

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Make it, unless this process has."""
        place = self.place(ctx, effect)
        if place not in _MEMORY:
            _MEMORY[place] = await self.errand.effect(effect, ctx.input)
        return _MEMORY[place]


class JoinsIds(Remembers):
    """Keeps it under ids that are joined by a sign which they may have."""

    def place(self, ctx: TaskContext, effect: str) -> str:
        """Return where it is kept."""
        return f"{ctx.task.session_id}:{ctx.task.task_id}:{effect}"


class ForgetsTheSession(Remembers):
    """Keeps it under the task's id alone."""

    def place(self, ctx: TaskContext, effect: str) -> str:
        """Return where it is kept."""
        return f"{ctx.task.task_id}:{effect}"


class PublishesAgain(Careful):
    """Publishes behind the task's back, under a new id in each run."""

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Append a row."""
        await ctx.store.save_update(
            StateUpdate(
                session_id=ctx.task.session_id,
                task_id=ctx.task.task_id,
                update_id=uuid4().hex,
                update_type=UpdateType.PROGRESS,
                content={"message": text},
            )
        )


class PublishesInOtherWords(Careful):
    """Publishes behind the task's back, and says in which run."""

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Append a row that no other run has."""
        await ctx.store.save_update(
            StateUpdate(
                session_id=ctx.task.session_id,
                task_id=ctx.task.task_id,
                update_id=uuid4().hex,
                update_type=UpdateType.PROGRESS,
                content={"message": f"{text}, as run {ctx.epoch} says"},
            )
        )


class GreetsInEachRun(PublishesInOtherWords):
    """Publishes in each run that it begins, and its texts once."""

    async def __call__(self, ctx: TaskContext) -> Any:
        """Greet, and run the errand."""
        await super().publish(ctx, "a run begins")
        return await super().__call__(ctx)

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Publish once."""
        await ctx.progress(text)


class EndsWhenStopped(Careful):
    """Takes the stop of its worker for the end of its task."""

    async def __call__(self, ctx: TaskContext) -> Any:
        """Run the errand, or return what there is."""
        try:
            return await super().__call__(ctx)
        except asyncio.CancelledError:
            return "stopped"


class SendsWhenStopped(Careful):
    """Is in a hurry when its worker stops, and does all at once."""

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Make it, or make another one."""
        try:
            return await super().done(ctx, effect)
        except asyncio.CancelledError:
            self.errand.effect_now("send", ctx.input)
            raise


class PublishesNothing(Careful):
    """Keeps its texts to itself."""

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Do nothing."""


class HandlesCancel(Careful):
    """Handles a cancel as it would a failed tool, and sends all the same."""

    async def __call__(self, ctx: TaskContext) -> Any:
        """Run the errand, whatever comes."""
        try:
            return await super().__call__(ctx)
        except BaseException:
            await self.errand.effect("send", ctx.input)
            raise


class NamesStepsByPayload(Careful):
    """Makes a payload part of a step's key, which is not encrypted."""

    async def done(self, ctx: TaskContext, effect: str) -> str:
        """Make it under such a key."""
        key = f"{effect} {ctx.input}"
        text: str = await ctx.keyed_step("effect", key, self.errand.effect, effect, ctx.input)
        return text


class LeavesKeys(Careful):
    """Keeps a key of its own, for ever."""

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Publish, and leave a key."""
        await super().publish(ctx, text)
        key = f"{ctx.store.settings.namespace}:mine"
        await ctx.store.transport.sender.send("SET", key, "1", repeatable=True)


class LeavesKeysOfItsOwn(Careful):
    """Keeps a key for ever, whose name begins with its own word."""

    async def publish(self, ctx: TaskContext, text: str) -> None:
        """Publish, and leave a key."""
        await super().publish(ctx, text)
        key = f"mine:{ctx.store.settings.namespace}"
        await ctx.store.transport.sender.send("SET", key, "1", repeatable=True)


class NeedsMore(Careful):
    """Cannot be made in a worker process."""

    def __init__(self, errand: Errand) -> None:
        super().__init__(errand)
        raise RuntimeError("no model is configured")


def _host(kind: Callable[[Errand], Callable[[TaskContext], Awaitable[Any]]]) -> HostUnderTest:
    def handler(errand: Errand) -> Handler:
        return partial(kind(errand))

    return HostUnderTest(name=str(kind), handler=handler)


SKIPS = HostUnderTest(
    name="skips",
    handler=Careful,
    skips={"reject": "this host asks nobody", "cancel": "it cannot be cancelled"},
)
SKIPS_UNKNOWN = HostUnderTest(name="skips", handler=Careful, skips={"pausing": "it is unknown"})
# Of each check, the hosts that must fail it, and what it must say.
BROKEN: dict[str, tuple[str, str, HostUnderTest]] = {
    "records_too_early": ("kill-look", "'look' was made 0 times", _host(RecordsTooEarly)),
    "records_nothing": ("kill-draft", "'look' was made [23] times", _host(RecordsNothing)),
    "asks_in_each_run": ("kill-send", "asks a second time", _host(AsksInEachRun)),
    "asks_twice": ("deciders", "2 pauses are open", _host(AsksTwice)),
    "drops_the_answer": ("deciders", "lacks '(ann|bob) says yes'", _host(DropsTheAnswer)),
    "takes_no_for_yes": ("reject", "although it was rejected", _host(TakesNoForYes)),
    "asks_nobody": ("reject", "asked nobody: it is COMPLETE", _host(AsksNobody)),
    "remembers": ("elsewhere", "'look' was made 2 times", _host(Remembers)),
    "publishes_again": ("replay", "a replay published PROGRESS", _host(PublishesAgain)),
    "publishes_in_other_words": ("replay", "in words that differ", _host(PublishesInOtherWords)),
    "greets_in_each_run": (
        "replay",
        "replays published PROGRESS \\d times",
        _host(GreetsInEachRun),
    ),
    "ends_when_stopped": ("hand-off", "not handed off: it is COMPLETE", _host(EndsWhenStopped)),
    "sends_when_stopped": ("hand-off", "'send' 1 by the first", _host(SendsWhenStopped)),
    "starts_over": ("hand-off", "'look' 1 by the second", _host(Remembers)),
    "publishes_nothing": ("replay", "no update has the text of 'look'", _host(PublishesNothing)),
    "handles_cancel": ("cancel", "'send' was made after a cancel", _host(HandlesCancel)),
    "joins_ids": ("ids", "'look' was made 0 times", _host(JoinsIds)),
    "forgets_the_session": ("same-id", "was made 0 times", _host(ForgetsTheSession)),
    "names_steps_by_payload": ("encryption", "payload in clear", _host(NamesStepsByPayload)),
    "leaves_keys": ("lifetimes", "no lifetime: .*:mine", _host(LeavesKeys)),
    "leaves_keys_of_its_own": ("lifetimes", "no lifetime: mine:", _host(LeavesKeysOfItsOwn)),
    "needs_more": ("elsewhere", "status 1\n(.*\n)*.*no model is configured", _host(NeedsMore)),
}
globals().update({name.upper(): host for name, (_, _, host) in BROKEN.items()})
