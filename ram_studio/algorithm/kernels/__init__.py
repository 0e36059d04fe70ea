"""Merging, counting and measuring blocks of elements.

``rules`` describes a merge, ``loops`` runs it on the CPU (called through ``cpu``, and ``relating``
for analyses; ``warming`` compiles them ahead), ``torch`` gives the same bits on any device.
Importing this package imports neither numba nor torch.
"""
