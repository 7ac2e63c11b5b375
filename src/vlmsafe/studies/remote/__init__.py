"""Runs that are kept at a URL: the store, the side of the run and the side of the study."""
