"""What only matters because strangers, or thirty students, use one server at once.

``lanes`` says whose heavy job runs next, ``presence`` who is still there, ``doorway`` what a
request may carry and what answers tell browsers, ``keeper`` ends and removes what nobody needs,
``zips`` sends folders home without a copy, ``tokens`` whose rights are used at the Hub, and
``words`` what is said where a limit is met.
"""
