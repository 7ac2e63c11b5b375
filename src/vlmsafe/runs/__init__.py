"""The run directory: what it holds, and the one reader of it."""
