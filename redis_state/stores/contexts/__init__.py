"""The context of a session: its parts, the patches to it, and groups of tasks."""
