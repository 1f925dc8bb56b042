"""What a replica measures, in Prometheus' terms. Knows nothing of the pool, of HTTP or of Ray."""
