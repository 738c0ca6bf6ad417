"""The console: pages of this package that a browser shows, and the two things that they need beyond the API that everybody uses.

- `assets.py` serves the pages: one shell, one stylesheet, small modules of JavaScript; no build, no inline script, nothing from elsewhere.
  The API reference at /docs is made of the same parts.
- `feed.py` is what happens, as it happens: one stream for a page, with numbers to go on from.
- `minutes.py` remembers the last hour, minute by minute, through restarts and over all nodes.
- `overview.py` is where everything stands now, in one answer.

The pages keep no secret of their own: they send the token that somebody typed in as a header, as any program would. There is no
cookie, so no other site can make a browser act here.
"""
