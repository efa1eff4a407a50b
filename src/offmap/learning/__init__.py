"""Learning known and novel classes from some labels and a pile of unlabelled data."""
