"""What only matters because strangers, or thirty students, use one server at once."""
