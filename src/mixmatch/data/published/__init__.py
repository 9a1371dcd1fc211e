"""Published data sets, in the layouts their authors publish."""
