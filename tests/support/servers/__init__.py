"""Servers on purpose: standalone, watched by Sentinels, clusters; and faults in them."""
