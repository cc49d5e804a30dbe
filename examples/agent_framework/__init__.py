"""A workflow of Microsoft's Agent Framework that another process continues."""
