"""The operations of the gateway, a file for each kind of thing."""
