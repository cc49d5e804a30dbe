"""What single questions about the store measure: rates, growth, guarantees, listening, memory."""
