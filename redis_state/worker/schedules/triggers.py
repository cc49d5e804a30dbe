"""The times at which a schedule is due: by a cron expression in a time zone, or by an interval.

Times are whole milliseconds since 1970, in UTC. Nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from redis_state.errors import InvalidField

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
# They mean another zone on each machine.
_LOCAL_ZONES = {"localtime", "Factory"}
_FIRST_SPAN_MS = 1_000
_WIDER = 8
# The first time that a cron expression can be counted from, and the last that datetime can hold,
# in every zone.
FIRST_MS: int = (datetime(1, 1, 3, tzinfo=UTC) - _EPOCH) // _MS
_LAST_MS = (datetime(9999, 1, 1, tzinfo=UTC) - _EPOCH) // _MS


def to_ms(moment: datetime) -> int:
    """Count a moment in milliseconds."""
    return (moment - _EPOCH) // _MS


def from_ms(at_ms: int) -> datetime:
    """Return the moment of a count of milliseconds."""
    return _EPOCH + at_ms * _MS


class Rhythm(Protocol):
    """Moments without an end."""

    def later_than(self, after_ms: int) -> Iterator[int]:
        """Yield the moments later than that, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Moments at equal distances, one of them the anchor."""

    every_ms: int
    anchor_ms: int

    def later_than(self, after_ms: int) -> Iterator[int]:
        """Yield the moments later than that, in order."""
        steps = (after_ms - self.anchor_ms) // self.every_ms + 1
        at_ms = self.anchor_ms + steps * self.every_ms
        while at_ms <= _LAST_MS:
            yield at_ms
            at_ms += self.every_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """The moments of a cron expression, by the clocks of a time zone.

    As with Debian's cron: a fixed time, of which no field begins with ``*``, that falls into an
    hour that the clocks skip comes right after it; in an hour that they repeat it comes once. With
    a ``*`` it comes in both, and in none that is skipped.
    """

    expression: str
    zone: ZoneInfo

    def later_than(self, after_ms: int) -> Iterator[int]:
        """Yield the moments later than that, in order."""
        after = from_ms(after_ms)
        # The seconds, minutes and hours.
        is_fixed = not any(each.startswith("*") for each in self.expression.split()[:-3])
        found = self._fixed(after) if is_fixed else self._shown(after)
        try:
            for moment in found:
                yield to_ms(moment)
        except OverflowError:  # the calendar has ended
            return

    def _fixed(self, after: datetime) -> Iterator[datetime]:
        """Yield the first moments at which the clocks show a time of the expression or a later."""
        last = after
        for wall in self._walls(after.astimezone(self.zone).replace(tzinfo=None)):
            first, second = self._moments(wall)
            moment = first if first <= second else self._change(second, first)
            # Several times that are skipped come as one.
            if moment > last:
                yield moment
                last = moment

    def _shown(self, after: datetime) -> Iterator[datetime]:
        """Yield the moments at which the clocks show a time of the expression."""
        last = after
        begin = after.astimezone(self.zone).replace(tzinfo=None)
        first, second = self._moments(begin.replace(microsecond=0))
        # When the clocks go back to what they have shown, and show ``begin`` again.
        back = self._change(first, second) if first <= last < second else None
        while True:
            for wall in self._walls(begin):
                first, second = self._moments(wall)
                if first > second:
                    continue  # it is skipped
                moment = first if first > last else second
                if moment <= last:
                    continue
                if back is not None and moment >= back:
                    break
                yield moment
                last = moment
                if first == moment < second:
                    back = self._change(first, second)
            if back is None:
                return
            # Once more from there: the library passes each time by the clocks once.
            last = max(last, back - _SECOND)
            begin, back = back.astimezone(self.zone).replace(tzinfo=None) - _SECOND, None

    def _walls(self, begin: datetime) -> CronSim:
        """Return the times by the clocks that are later, of a zone without changes."""
        return CronSim(self.expression, begin)

    def _moments(self, wall: datetime) -> tuple[datetime, datetime]:
        """Return when the clocks show a time: before a change of them, and after it.

        Both are one unless the time is repeated. One that is skipped has the second first.
        """
        shown = wall.replace(tzinfo=self.zone)
        return shown.astimezone(UTC), shown.replace(fold=1).astimezone(UTC)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the first moment after the change of the clocks that is between two moments."""
        offset = before.astimezone(self.zone).utcoffset()
        while after - before > _SECOND:
            middle = before + (after - before) // (2 * _SECOND) * _SECOND
            if middle.astimezone(self.zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        return after


@dataclass(frozen=True, slots=True)
class Trigger:
    """A rhythm between a start, which is part of it, and an end, which is not."""

    rhythm: Rhythm
    start_ms: int | None = None
    end_ms: int | None = None

    def between(self, after_ms: int, until_ms: int | None = None) -> Iterator[int]:
        """Yield the moments later than the first and not later than the second, in order."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        for at_ms in self.rhythm.later_than(after_ms):
            if self.end_ms is not None and at_ms >= self.end_ms:
                return
            if until_ms is not None and at_ms > until_ms:
                return
            yield at_ms

    def next_after(self, after_ms: int) -> int | None:
        """Return the first moment later than that, None if none comes any more."""
        return next(self.between(after_ms), None)

    def newest(self, after_ms: int, until_ms: int, *, most: int) -> list[int]:
        """Return the last moments later than the first and not later than the second, in order.

        The cost depends on ``most``, hardly on the length of the time.
        """
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.end_ms is not None:
            until_ms = min(until_ms, self.end_ms - 1)
        span_ms = _FIRST_SPAN_MS * most
        while True:
            begin_ms = max(after_ms, until_ms - span_ms)
            found = deque(self.between(begin_ms, until_ms), maxlen=most)
            if len(found) == most or begin_ms == after_ms:
                return list(found)
            span_ms *= _WIDER


def read_zone(field: str, name: object) -> ZoneInfo:
    """Read an IANA time zone. Errors: InvalidField."""
    if not isinstance(name, str):
        raise InvalidField(field, "the name of a time zone is needed")
    try:
        if name not in _LOCAL_ZONES:
            return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        pass
    raise InvalidField(field, "no IANA time zone of this name, such as Europe/Berlin, is known")


def read_cron(field: str, expression: object, zone: ZoneInfo) -> Cron:
    """Read a cron expression of five fields, or of six with seconds first. Errors: InvalidField."""
    if not isinstance(expression, str):
        raise InvalidField(field, "a cron expression is needed, such as 0 9 * * MON-FRI")
    cron = Cron(" ".join(expression.split()), zone)
    try:
        first = list(islice(cron.later_than(0), 1))
    except CronSimError as error:
        raise InvalidField(field, f"no cron expression: {error}") from None
    except (AssertionError, ValueError, OverflowError):
        raise InvalidField(field, "no cron expression") from None
    if not first:
        raise InvalidField(field, "it is never due")
    return cron
