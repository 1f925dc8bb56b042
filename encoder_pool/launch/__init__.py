"""From a configuration file to a running service on this host, and back."""
