"""The store as other packages want it. Each module needs the package that it is named after."""
