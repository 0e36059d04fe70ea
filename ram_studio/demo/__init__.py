"""The example: a tiny base and really RL-trained agents, trained from nothing by one script.

`python -m ram_studio.demo --out assets` makes everything under assets/example and assets/dense. The
corpus is deliberately noisy and the models are toys; see assets/example/README.md.
"""
