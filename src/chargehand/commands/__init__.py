"""The commands of `chargehand`. `chargehand NAME` is NAME.py, or NAME/ if it needs more than one file; `cli.py` lists them all.

A new command is a file with `app = typer.Typer()` and one command on it, a row in `cli.py`, and tests/commands/test_NAME.py. In a room,
`__init__.py` has the options and the help, `text.py` what is printed, and the other files do the work.

All commands share `options.py`, `connection.py` (the client, and its errors as refusals), `doors.py` (jobs of any door), `refusals.py`,
`text.py` (columns, colours, times) and `exit_codes.py`. Modules that are slow to import are imported inside the commands that use
them, so that --help and completion answer at once.
"""
