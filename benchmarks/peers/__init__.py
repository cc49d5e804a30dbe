"""The contenders. Each module has ``prepare(url)``, which gives its operations by name.

Those of other environments import nothing of the store.
"""
