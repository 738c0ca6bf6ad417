"""The agent of the maintenance system: it finds its task, checks that it is meant for this machine, does it step by step, and tells.

It runs as root on a machine that holds nothing yet, from an image that is never updated in place: standard library only, every
command an argument list, every plan a value that can be looked at before anything is done.

    __main__.py     the entry points
    dispatch.py     from the task medium to a started target
    steps.py        one step: what it is made of, and how it tells
    report.py       the one word at the end; heartbeat.py: the many before it
"""

VERSION = "1.0"
