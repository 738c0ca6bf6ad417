"""The commands of `chargehand`. One file a command, with what it needs beside it; `cli.py` hangs them on one tree.

What talks to a server does so over HTTP like everybody else (`calling.py`), refuses in one line with the fix (`refusals.py`), prints
plain columns (`texts.py`) and ends with the same exit codes (`exits.py`). Heavy modules are imported inside the commands that need
them: completion and --help start in no time.
"""
