"""The methods of the client for tasks and sessions, a file for each kind."""
