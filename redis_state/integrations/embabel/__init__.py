"""Embabel's task state manager."""
