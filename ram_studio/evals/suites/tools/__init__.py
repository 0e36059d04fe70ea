"""Suites whose answers are calls of functions: one call or several, or a conversation."""
