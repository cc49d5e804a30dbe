"""Imports from the savers of other stores."""
