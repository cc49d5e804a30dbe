"""Servers that change under their clients: histories, clocks and passwords; and their end."""
