"""The one training loop, and what keeps a run exact over time: optimizer, checkpoints, evaluation, progress."""
