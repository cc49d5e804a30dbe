"""The archiver of a worker process, and how records are put on its list again."""
