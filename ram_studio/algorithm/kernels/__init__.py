"""Merging, counting and measuring blocks of elements.

``rules`` says what is to be done, ``loops`` does it on the CPU (called through ``cpu``, and
``relating`` for analyses; ``warming`` compiles them ahead), ``torch`` does the same on any device,
to the same bits. Importing this package imports neither numba nor torch.
"""
