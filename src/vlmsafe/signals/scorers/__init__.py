"""Scorers by name. A model and its libraries are imported only when one is made."""
