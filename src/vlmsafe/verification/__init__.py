"""Check a run: replay some of its epochs elsewhere, and compare them with what the run recorded."""
