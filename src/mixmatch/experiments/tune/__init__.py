"""A search for better settings: Optuna suggests, jobs train, and validation rows alone decide.

A sweep is a folder. Optuna's journal in it says which trials there are and with what values, and each trial has a run
folder, or one for each fold. So a driver that was killed continues: what the journal has as running is resumed from its
folders, wherever it stood between asking and telling.

journal.log      Optuna's journal: what was asked and told
trial-000/       the run with the defaults, then trial-001/ and so on; with folds trial-000/fold-1/ and so on
best.toml        the best settings, for `mixmatch train --config`
trials.csv       all trials
slices.png       the error over each setting
"""
