"""The demo: a small pool of agents that pause, are steered, cancelled and resumed."""
