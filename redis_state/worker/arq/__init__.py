"""What needs arq: its settings, its cron jobs."""
