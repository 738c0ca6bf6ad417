"""The agent of the maintenance system: finds its task, checks that it is for this machine, runs its steps, and reports.

It runs as root on a machine without an operating system, from an image that is never updated in place: the standard library and
Debian's python3-jsonschema only, every command an argument list, every plan a value that can be inspected before it is executed.

    __main__.py     the entry points
    dispatch.py     reads the task medium and starts the systemd target
    steps.py        runs one step and reports its progress
    report.py       the final report; heartbeat.py: the progress reports before it
"""

VERSION = "1.0"
