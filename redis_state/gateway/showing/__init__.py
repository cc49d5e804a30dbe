"""What callers are shown of tasks and pauses: without tokens, and as a host's filter allows."""
