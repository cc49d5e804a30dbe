"""Trouble with the server: try again later."""

from __future__ import annotations

from redis_state.errors.base import RedisStateError


class BackendError(RedisStateError):
    """Trouble with the server."""


class NoConnection(BackendError):
    """There is no usable connection to the server at ``address``, for ``reason``.

    ``final`` is true if a retry is useless until the URL, a certificate or a password is changed.
    Such an error is raised at once, the others at the call's deadline.
    """

    def __init__(self, address: str, reason: str, *, final: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason
        self.final = final


class BackendUnavailable(NoConnection):
    """The server at ``address`` cannot be reached. The call did not happen. Repeat it later."""


class AuthenticationFailed(NoConnection):
    """The server refuses the user and password, or requires them. The call did not happen.

    Correct the URL or the server's users. ``final`` is true, but with credentials that may change.
    """

    def __init__(self, address: str, reason: str, *, final: bool = True) -> None:
        super().__init__(address, reason, final=final)


class OutcomeUnknown(BackendUnavailable):
    """The connection broke after the call was sent. It may have happened: repeat it by its id."""


class StoreFull(BackendError):
    """The server has no memory or disk for writes. Nothing was written. Reads work."""


class JournalRewound(BackendError):
    """The server's history went back: it lost entries of a task's journal that the run knows.

    Nothing was written. The run ends here. The task begins again from what the server has left.
    """

    def __init__(self, what: str, *, known: int, found: int) -> None:
        super().__init__(f"{what}: the server has {found} entries of {known} that this run knows")
        self.known = known
        self.found = found


class CommandRefused(BackendError):
    """The server refused the command. The text has the reason, such as a missing right."""


class CorruptState(BackendError):
    """The stored data is damaged. ``key`` is its place, ``problem`` what is wrong."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


class PayloadUnreadable(BackendError):
    """A payload cannot be read in this process, which lacks the key of its codec.

    ``of`` says whose it is, ``field`` which one. Nothing was changed: another process may have the
    key. Give this one `payload_keys`, or its codec.
    """

    def __init__(self, of: str, field: str, problem: str) -> None:
        super().__init__(f"{field} of {of} cannot be read: {problem}")
        self.of = of
        self.field = field


class PayloadStoreUnavailable(BackendError):
    """The store of large payloads cannot be used now. Nothing was written to the server."""

    def __init__(self, action: str, problem: str) -> None:
        super().__init__(f"the store of large payloads: cannot {action} an object: {problem}")


class ArchiveUnavailable(BackendError):
    """The archive cannot be used now. What was not verified there stays in Redis.

    ``refused`` if it can be reached, and does not take what it was given. ``denied`` if it can be
    reached, and this user has no right to that.
    """

    def __init__(
        self, action: str, problem: str, *, refused: bool = False, denied: bool = False
    ) -> None:
        super().__init__(f"the archive: cannot {action}: {problem}")
        self.refused = refused
        self.denied = denied


class OtherArchive(ArchiveUnavailable):
    """The archive is not the one that has what Redis has marked as archived.

    Nothing was written. ``known`` is the id of that one, ``found`` of this one: None if it is new,
    empty, or of an earlier version. Correct `archive_url`, or mount its folder. Or have this one
    take its place: ``redis-state archive run --accept``.
    """

    def __init__(self, action: str, known: str, found: str | None) -> None:
        named = "has no id, so it is new, empty or older" if found is None else f"is {found}"
        super().__init__(
            action,
            f"it {named}, and Redis knows {known}. Correct archive_url, mount its folder, "
            "or accept this one: redis-state archive run --accept",
        )
        self.known = known
        self.found = found


class ArchiveFileMissing(ArchiveUnavailable):
    """A data file of the archive is gone, which its log names. The rest can be used.

    ``file`` is its name below the namespace's folder. Restore it, or have the archive count it no
    more: ``redis-state archive drop-missing``.
    """

    def __init__(self, action: str, file: str) -> None:
        super().__init__(action, f"its file {file} is missing", refused=True)
        self.file = file


class PayloadLost(CorruptState):
    """A large payload is gone from its store, or is not what was written there.

    ``of`` says whose it is, ``field`` which one, ``object_key`` where it should be.
    """

    def __init__(self, of: str, field: str, object_key: str, problem: str) -> None:
        super().__init__(f"{field} of {of}", f"its object {object_key} {problem}")
        self.of = of
        self.field = field
        self.object_key = object_key
