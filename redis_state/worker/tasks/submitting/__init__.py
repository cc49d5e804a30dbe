"""How a task is submitted: by itself, in turn with others, or gathered from many calls."""
