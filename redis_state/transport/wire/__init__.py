"""What is on the wire: commands as bytes, scripts, and what servers refuse."""
