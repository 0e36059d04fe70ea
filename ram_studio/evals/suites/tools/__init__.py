"""Suites whose answers are function calls: one or several, or a conversation."""
