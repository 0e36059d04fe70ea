"""Scores of well-known small models on our suites, shipped question by question, to stand beside.

`records` are made by `python -m ram_studio.evals.calibration.measure`; `record` reads them;
`standing` says between which of them a user's model stands. A model without a record was not
measured here, and no number is given for it.
"""
