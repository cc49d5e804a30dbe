"""Values as bytes: JSON, its lossy and lossless forms, and checks that name a field."""
