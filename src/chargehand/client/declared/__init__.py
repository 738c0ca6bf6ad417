"""Tasks that are declared once, on a function: `App`.

`app.py` is the face; `task.py` is a declared task, as a function and as something to send, `sent.py` one that was sent. `values.py` checks what
travels, on both sides. `handler.py` is what a worker runs, `batches.py` the same for many tasks at once, `retries.py` when to try
again. `flows.py` makes steps and flows of calls, `references.py` stands for results that are not there yet, `graph.py` is what of a flow is sent.
`policies.py` tells the server what was declared when a worker starts. `discovery.py` finds apps and tasks.
"""
