"""The scripts of the primitives: one file for each folder of `lua`."""
