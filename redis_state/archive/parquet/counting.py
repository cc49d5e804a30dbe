"""Count records by class."""

from __future__ import annotations

from collections import Counter

from redis_state.archive.erased import OF_SESSIONS
from redis_state.archive.model import RecordKind
from redis_state.archive.parquet.files.columns import RECORDS, classes_in, digest_of
from redis_state.archive.parquet.files.data_files import DataFile
from redis_state.archive.parquet.files.reading import FileReader


def classes_of(reader: FileReader, file: DataFile) -> dict[str, tuple[int, int, int]]:
    """Return what the log says of the classes in a file; of an older entry read it there.

    Of each class the number of its records, and from when to when their states are, in us.
    """
    if file.classes is not None:
        return dict(file.classes)
    return classes_in(reader.keys(file, None, ["kind", "at"]))


def counted(reader: FileReader, file: DataFile) -> dict[str, int]:
    """Count the records of a file by class."""
    return {name: rows for name, (rows, _, _) in classes_of(reader, file).items()}


def records_of_session(reader: FileReader, session: str) -> dict[RecordKind, int]:
    """Count the records that a session owns, by class. Its id is as a column has it."""
    found: Counter[str] = Counter()
    for file in reader.files.having(RECORDS, digest_of(session)):
        found.update(reader.keys(file, session, ["owner", "kind"])["kind"].to_pylist())
    return {kind: found[kind] for kind in RecordKind if kind in OF_SESSIONS and found[kind]}
