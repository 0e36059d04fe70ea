"""Recipes from and to mergekit's YAML; what its keys mean was read off version 0.1.5."""

from ram_studio.checkpoints.record.mergekit.exporting import export_mergekit
from ram_studio.checkpoints.record.mergekit.importing import import_mergekit

__all__ = ["export_mergekit", "import_mergekit"]
