"""The promises that everything else is built on: log, record, token, lease, blob, signal,
listing, watch list.

Each puts one difficulty of distributed state into one place; the stores above are a few lines
over them.
"""
