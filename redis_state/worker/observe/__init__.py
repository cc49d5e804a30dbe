"""What a worker shows of itself: its registry record, statistics, metrics and traces."""
