"""Gateways to call, and what tests read from them over HTTP."""
