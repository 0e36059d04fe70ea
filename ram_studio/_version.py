"""The package version, written here and read everywhere else."""

__version__ = "0.2.0"
