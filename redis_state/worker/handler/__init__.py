"""What a handler is given, and what is set around it: its context, guards and versions."""
