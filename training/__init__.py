"""How the agents that are measured here were trained; no part of the package."""
