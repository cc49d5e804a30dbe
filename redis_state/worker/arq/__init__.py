"""What needs arq: its settings, the format of its jobs, its cron jobs."""
