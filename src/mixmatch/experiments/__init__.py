"""Experiments are lists of runs: methods side by side on the same labels."""
