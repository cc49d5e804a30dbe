"""The Durable Streams protocol: streams at ``/v1/stream/<path>``, for any client library of it."""
