"""The demo: a pool of workers that reviews Markdown documents."""
