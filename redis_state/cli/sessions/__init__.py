"""The commands about agents' sessions."""
