"""How fast it is, beside the limit: each figure is a ratio to a bare handler in the same interleaved run.

    python -m tests.bench                       # the whole table
    python -m tests.bench reads --rounds 7      # one group of it

Machines are noisy, so nothing here asserts, and a rate alone says little: the daemon and the bare handler take turns, round by
round, and the medians are compared. The load comes from wrk, in a process of its own; everything talks to the loopback.
"""
