"""Recovery: the sweeper that reads the watch list, and the dead letters."""
