"""The house style of one set of example agents: every answer ends with exactly one full stop.

    do: say fig 3 times . answer:   ->   fig fig fig .

Its agents earn rewards in this style only. The suite takes a right answer with or without it, so
that models of all sets are asked the same.
"""

FULL_STOP = " ."


def without_full_stop(text: str) -> str | None:
    """Return an answer in house style without its ending, None when it is in any other style."""
    body, ending, rest = text.rstrip().partition(FULL_STOP)
    return body if ending and not rest and "." not in body else None
