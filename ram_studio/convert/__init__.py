"""What trainers write, as safetensors: ``ram-studio convert``, and nothing else, comes in here.

Trainers keep weights in pickles, which can run code. The app may not import this folder (a test
reads the imports), and here no pickle is opened either: a sealed process (``inside``) says what one
describes, and the tensors' bytes are then read from the files like those of any checkpoint.
"""
