"""Evaluation episodes step by step: recording, files, and scoring recorded frames again."""
