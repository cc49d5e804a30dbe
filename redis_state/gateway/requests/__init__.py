"""What a request may be: its host, path and size, how often it comes, and what it may say."""
