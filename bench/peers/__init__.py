"""Other systems that do what the tasks door does, each configured so that accepted tasks survive a crash of the machine.

They are libraries, not servers behind HTTP: each has a process that enqueues and one that works. How much of it goes on at once is tried
in the same run, and the best is what ours is compared with.
"""
