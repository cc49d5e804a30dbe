"""Graphs as handlers of the pool."""
