"""What is kept under keys of a host's choice: memory states, and values with their lifetimes."""
