"""The ids of artifacts: made of what an artifact is and whose, with the place of its session."""

from __future__ import annotations

import hashlib
import re

from redis_state.errors import InvalidField
from redis_state.models.artifacts import ArtifactRef, ArtifactScope
from redis_state.serialization import codec

_CLEAN = re.compile(r"[^A-Za-z0-9_-]+")
_ID = re.compile(r"[A-Za-z0-9_-]+_[0-9a-f]{20}([0-9a-f]{16})")
SESSION_OF_NONE = "default"


def artifact_id_of(
    namespace: str | None, digest: str, scope: ArtifactScope | None, place: str
) -> str:
    """Return an artifact's id, made of its content and its owner: no two owners share one."""
    owner = (scope.tenant_id, scope.user_id) if scope else (None, None)
    name = hashlib.sha256(codec.canonical([digest, *owner])).hexdigest()[:20]
    prefix = _CLEAN.sub("_", namespace).strip("_-") if namespace else ""
    return f"{prefix or 'art'}_{name}{place}"


def place_of(artifact_id: str) -> str | None:
    """Read the place of an artifact's session off its id; None if it is no id of ours."""
    if not isinstance(artifact_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("artifact_id", f"text is needed, not {type(artifact_id).__name__}")
    found = _ID.fullmatch(artifact_id)
    return found[1] if found else None


def session_of(ref: ArtifactRef) -> str:
    """Return the session that owns an artifact: ``default`` if its scope names none."""
    return owning_session(ref.scope)


def owning_session(scope: ArtifactScope | None) -> str:
    """Return the session whose limits apply. Without one it is one for all."""
    if scope is None or scope.session_id is None:
        return SESSION_OF_NONE
    return scope.session_id
