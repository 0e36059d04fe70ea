"""Converts trainers' checkpoints to safetensors; used by ``ram-studio convert`` only.

Trainers store weights in pickles, which can run code. The app may not import this folder (a test
reads the imports), and no pickle is opened here either: a sealed process (``inside``) describes its
tensors, whose bytes are then read from the files like those of any checkpoint.
"""
