"""The checks of the audit, by what they look at."""
