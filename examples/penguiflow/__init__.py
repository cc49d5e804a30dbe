"""PenguiFlow planners that pause in one process and are resumed in another."""
