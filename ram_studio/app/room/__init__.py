"""A live classroom: rooms in memory, the routes that teachers and students ask, and the report."""
