"""The log: rows in order, appended once per id, read and followed from a cursor."""
