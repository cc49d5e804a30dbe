"""One task: its moves here, and in the folders what is around them.

Imports go one way: `recorded`, then the moves of this folder, then `execution`, and the other four.
"""
