"""One task: its moves here, and in the folders what is around them.

Imports go one way: `recorded`, the moves of this folder, `children`, `execution`, `views`, then
`messaging`, `waitpoints` and `submitting`, and `operate`.
"""
