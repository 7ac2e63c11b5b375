"""Evaluate policies under named protocols, and trace them step by step."""
