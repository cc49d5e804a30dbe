"""The files of an archive: where they stand, which of them count, how they are read and written."""
