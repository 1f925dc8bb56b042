"""The Serve deployment of a model: admission, batching, the ring, and the workers behind it."""
