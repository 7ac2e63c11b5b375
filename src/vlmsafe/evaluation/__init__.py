"""Evaluation episodes and traces under named protocols."""
