"""One task: its transitions, journal, steps, pauses, children, inbox and updates."""
