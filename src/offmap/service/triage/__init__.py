"""The triage page: people name groups of unknown inputs, which are learned and deployed."""
