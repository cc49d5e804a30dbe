"""The commands of the archive: what is there, and archiving by hand."""
