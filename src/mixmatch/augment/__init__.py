"""Augmentation in batch, on the device."""
