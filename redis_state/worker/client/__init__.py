"""The client of the pool: submit, steer, find and operate tasks, from any process."""
