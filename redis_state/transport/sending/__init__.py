"""How calls travel: in batches, in order, by their deadlines, again if that is safe."""
