"""PATE: labels for public images by the noisy vote of teachers that saw private data, and their privacy cost.

`votes` reads the teachers' votes, `mechanisms` answers queries with noise, `accountant` computes what the answers cost,
`smooth` makes a data-dependent cost safe to publish, `ledger` keeps the budget. `teachers` trains on the private
images, `student` on the public ones and the `answers`, both by `runs`; `analysis` sums up the cost; `pipeline` does
all of it. The images themselves are opened by `mixmatch.data.pate`.
"""
