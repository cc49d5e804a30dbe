"""Requests to a gateway, and what comes back: answers, errors, streams of events."""
