"""The commands about a server, and from one server to another."""
