"""The example: a tiny base and RL-trained agents, trained from scratch by one script.

`python -m training.shipped --out assets` makes everything under assets/shared-style,
assets/independent and assets/dense: three sets of agents of one base, each for another lesson. The
corpus is deliberately noisy and the models are toys; see assets/independent/README.md.
"""
