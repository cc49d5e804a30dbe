"""What the tests of MCP servers share."""
