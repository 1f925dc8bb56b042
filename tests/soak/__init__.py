"""`make soak`: a real service under mixed traffic and random kills for a given time."""
