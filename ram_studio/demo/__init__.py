"""The example: a tiny base and really RL-trained agents, trained from nothing by one script.

`python -m ram_studio.demo --out assets` makes everything under assets/house, assets/example and
assets/dense: three sets of agents of one base, each with another lesson. The corpus is deliberately
noisy and the models are toys; see assets/example/README.md.
"""
