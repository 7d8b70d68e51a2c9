"""Native configuration per broker kind."""
