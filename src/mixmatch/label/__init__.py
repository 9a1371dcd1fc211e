"""Labeling: what to label next, and which labels may be wrong. Nothing here needs torch."""
