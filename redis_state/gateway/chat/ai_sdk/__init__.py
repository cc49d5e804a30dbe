"""The AI SDK's UI message stream: a message is a task, with resume and stop."""
