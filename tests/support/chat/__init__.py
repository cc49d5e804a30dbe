"""Chats of the gateway, as their clients see them."""
