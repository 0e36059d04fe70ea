"""The command line: parsing and printing only. Every command is one call of the library."""

from ram_studio.cli.main import main

__all__ = ["main"]
