"""Calls of the Lua scripts: in short, and one of each."""
