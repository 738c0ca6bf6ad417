"""The console: its pages, and the data that they need beyond the public API.

- `assets.py` serves the pages: one HTML shell, one stylesheet, small modules of JavaScript; no build, no inline script, no other hosts.
  The API reference at /docs is made of the same parts.
- `feed.py` streams changes to pages as they happen; a page can resume after a lost connection.
- `minutes.py` keeps the counts of the last hour, minute by minute, across restarts and nodes.
- `overview.py` returns the current state of everything in one answer.

The pages send the token that the user typed in as a header, as any program would. There is no cookie, so no other site can make a
browser act here.
"""
