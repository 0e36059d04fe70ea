"""What a shared server needs: limits, a job queue, request checks."""
