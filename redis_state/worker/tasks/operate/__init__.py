"""What an operator does with ended tasks: retry, rerun, fork, one by one or in bulk."""
