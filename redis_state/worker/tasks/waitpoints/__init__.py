"""Waitpoints: pauses, their tokens and forms, who decides them, and the list of open ones."""
