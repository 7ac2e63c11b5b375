"""One scoring service for all runs of a study."""
