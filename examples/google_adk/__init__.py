"""Agents of Google's ADK whose sessions several processes share."""
