"""Examples: one a folder, each with its command. Not part of the wheel."""
