"""What the frameworks that run agents keep here: their pauses, tokens, jobs and snapshots."""
