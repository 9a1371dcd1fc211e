"""Experiments are lists of runs: the paper's tables and figures, and methods side by side on the same labels."""
