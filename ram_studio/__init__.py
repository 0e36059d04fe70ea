"""RAM Studio: look into, merge and check RL-trained LLM agents."""

from ram_studio._version import __version__

__all__ = ["__version__"]
