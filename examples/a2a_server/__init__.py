"""An A2A server with replicas."""
