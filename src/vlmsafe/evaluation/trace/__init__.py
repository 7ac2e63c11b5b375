"""Traces: record evaluation episodes step by step, summarise them, and score recorded frames again."""
