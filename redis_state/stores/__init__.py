"""One thin file per kind of state: model to row and back, which primitive, which key."""
