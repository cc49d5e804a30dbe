"""How the values of an agent's state are written and read: frozen, by kind, and late."""
