"""One score per file or small family."""
