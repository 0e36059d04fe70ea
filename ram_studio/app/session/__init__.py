"""Common parts of the steps: sessions, loaded models, jobs, shipped sets and links."""
