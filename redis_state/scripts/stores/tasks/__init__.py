"""The scripts of a worker's task: its life, its journal, its children, its messages."""
