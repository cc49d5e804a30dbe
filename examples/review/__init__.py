"""A pool of workers that reviews Markdown documents."""
