"""The commands that read tasks, find them, change them, talk to them and run them again."""
