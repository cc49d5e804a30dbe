"""What goes to a running task and comes from it: messages, published values, text of models."""
