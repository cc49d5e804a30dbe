"""What a run does for its handler: steps, retries, patches, updates, the inbox, compensations."""
