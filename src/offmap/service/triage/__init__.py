"""The triage page: a person looks at the pile in groups, names them, and has them learned, deployed or rolled back."""
