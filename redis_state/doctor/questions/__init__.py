"""The questions to servers, to the pool, and to what is kept beside Redis."""
