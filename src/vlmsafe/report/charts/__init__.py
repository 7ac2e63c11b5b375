"""The charts of a report: which numbers go on which axes."""
