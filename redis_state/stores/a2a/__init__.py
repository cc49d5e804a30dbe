"""Tasks of A2A servers: one store under three hosts."""
