"""Streams to HTTP clients: the hub beside sse-starlette with one watch a client."""
