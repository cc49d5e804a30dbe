"""One module an engine. Its ``prepare`` returns an `Engine`; it is imported in its environment."""
