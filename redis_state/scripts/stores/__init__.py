"""The scripts of the stores: one file for each folder of `lua`."""
