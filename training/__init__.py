"""Training of the measured agents; not part of the package."""
