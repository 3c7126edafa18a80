"""Per-thread maintenance state and one alarm slot per thread. Knows nothing of agents."""
