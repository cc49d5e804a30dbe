"""The processes of tests: forked quickly, and ended with their test."""
