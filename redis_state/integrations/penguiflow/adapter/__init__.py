"""PenguiFlow as it is: its classes, and the names in it that are not public."""
