"""A live classroom: rooms in memory, the routes for teachers and students, and the report."""
