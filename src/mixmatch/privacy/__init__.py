"""PATE: labels for public images by the noisy vote of teachers that saw private data, and what they cost in privacy.

`votes` reads what the teachers said, `mechanisms` answers queries with noise, `accountant` says what the answers cost,
`smooth` makes a data-dependent cost fit to publish, `ledger` keeps the budget. `teachers` trains on the private images,
`student` on the public ones and the `answers`; `pipeline` does all of it.
"""
