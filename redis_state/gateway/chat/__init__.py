"""Protocols of chat front ends over the hub: AG-UI, and the message stream of the AI SDK."""
