"""Policies that imitate an environment's scripted driver: record it, regress its actions, write a run."""
