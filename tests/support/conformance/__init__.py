"""Hosts that run the checks of conformance, and hosts that must fail them."""
