"""The agent of the maintenance system: it finds its task, checks that it is meant for this machine, does it step by step, and reports.

It runs as root on a machine that holds nothing yet, from an image that is never updated in place: the standard library and
Debian's python3-jsonschema only, every command an argument list, every plan a value that can be read before it is carried out.

    __main__.py     the entry points
    dispatch.py     from the task medium to a started target
    steps.py        one step: its parts, and how it reports
    report.py       the report at the end; heartbeat.py: those before it
"""

VERSION = "1.0"
