"""An MCP server whose calls of tools outlive it: ``python -m examples.mcp``."""
