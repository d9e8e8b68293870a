"""Compaction: the last record of every key stays, what it replaced goes. Offsets, order and everybody's place stay as they are.

`policy` says what may be cleaned and what first (pure), `rewrite` is one pass over one log, `worker` the process that does it,
`cleaner` the broker's side: it chooses, sends jobs, and swaps in what came back. Nothing of a log changes but by that swap.
"""
