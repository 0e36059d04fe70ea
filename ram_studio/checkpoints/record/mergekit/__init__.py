"""Recipes from and to mergekit's YAML, with the meaning of keys in version 0.1.5."""

from ram_studio.checkpoints.record.mergekit.exporting import export_mergekit
from ram_studio.checkpoints.record.mergekit.importing import import_mergekit

__all__ = ["export_mergekit", "import_mergekit"]
