"""For shared servers: limits, a job queue, request checks."""
