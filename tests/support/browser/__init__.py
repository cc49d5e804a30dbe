"""Pages of the console, with and without a real browser."""
