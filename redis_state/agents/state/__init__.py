"""An agent's state: frozen values, and how they are written as JSON."""
