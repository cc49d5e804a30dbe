"""The queue, which arq keeps: its jobs, its server, its loop, its cron."""
