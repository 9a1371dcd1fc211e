"""`mixmatch pate`: labels from the noisy vote of teachers that saw private data, and what they cost in privacy."""
