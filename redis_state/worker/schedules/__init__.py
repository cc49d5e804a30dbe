"""Schedules: tasks that are submitted at their times, each occurrence once."""
