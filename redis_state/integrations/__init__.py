"""Adapters for hosts. A module that needs its host's package is imported only with it."""
