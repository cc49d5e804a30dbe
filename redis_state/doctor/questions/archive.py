"""The archive: whether it is reached, is the one that Redis knows, and gets what has ended."""

from __future__ import annotations

from redis_state.archive import Archive, open_archive
from redis_state.archive.identity import KnownArchive
from redis_state.archive.waiting import ArchiveList
from redis_state.doctor.finding import Finding, Found, Verdict, answered
from redis_state.errors import ArchiveUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList
from redis_state.timeouts import timeout

_QUESTION = "archive"
_LATE_S = 3600.0
_REACH_IT = "start it, give its user the rights, or correct the URL"


async def archive_findings(store: RedisStateStore) -> Found:
    """Ask the archive that the settings name, and count what waits for it. Write nothing.

    Errors: NoConnection, of Redis.
    """
    if not store.settings.has_archive:
        return
    try:
        archive = open_archive(store.settings)
    except ConfigError as error:
        yield Finding(
            "archive_url",
            _QUESTION,
            Verdict.FINDING,
            str(error),
            "this process cannot use the archive",
            "correct REDIS_STATE_ARCHIVE_URL, or install what it needs",
        )
        return
    place = _place(store.settings)
    try:
        for answers in (_late(store, place), _answer(store, archive, place)):
            async for each in answered(place, _QUESTION, answers):
                yield each
    finally:
        await archive.aclose()


async def _late(store: RedisStateStore, place: str) -> Found:
    tasks, records = await ArchiveList(store).backlog(), await RecordList(store.base).backlog()
    late_s = max(tasks.age_s, records.oldest_s)
    if late_s > _LATE_S:
        yield Finding(
            place,
            _QUESTION,
            Verdict.FINDING,
            f"{tasks.tasks} tasks, {records.records} records and the updates of "
            f"{tasks.sessions} sessions wait, the first of them for {late_s:.0f} s",
            "they are in Redis alone, which grows",
            "run an archiver, and look at its log",
        )


async def _answer(store: RedisStateStore, archive: Archive, place: str) -> Found:
    yield await _look(store, archive, place)


async def _look(store: RedisStateStore, archive: Archive, place: str) -> Finding:
    def finding(says: str, means: str, do: str) -> Finding:
        return Finding(place, _QUESTION, Verdict.FINDING, says, means, do)

    nothing = "nothing is archived, and what waits stays in Redis"
    try:
        async with timeout(store.settings.connect_timeout_s):
            known, found = await KnownArchive(store, archive).look()
    except TimeoutError:
        return finding("no answer", nothing, _REACH_IT)
    except ArchiveUnavailable as error:
        if not error.denied:
            return finding(str(error), nothing, _REACH_IT)
        # The user of the archivers may be another one, which may read it.
        means = "this user may not read the archive's id, so which archive it is is not known"
        do = "GRANT SELECT ON redis_state.identity to it"
        return Finding(place, _QUESTION, Verdict.UNKNOWN, str(error), means, do)
    if known is not None and known != found:
        named = "it has no id" if found is None else f"it is {found}"
        return finding(
            f"{named}, and Redis knows {known}",
            nothing,
            "correct the URL or mount its folder, or run: redis-state archive run --accept",
        )
    if found is None:
        return finding(
            "there is none, or no archiver of this version has prepared it",
            "the first archiver makes it once something has ended",
            "check the place, and start an archiver",
        )
    return Finding(place, _QUESTION, Verdict.SOUND, f"reached, its id is {found}")


def _place(settings: Settings) -> str:
    """Return the URL without a login and options."""
    if settings.archive_url is None:
        return "archive_store"
    url = settings.archive_url.get_secret_value()
    if not url.startswith("postgres"):
        # A login in it is refused when it is opened.
        return url.partition("?")[0]
    from redis_state.postgres.address import shown  # noqa: PLC0415 - needs the extra

    return shown("archive_url", settings.archive_url)
