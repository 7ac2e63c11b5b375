"""Runs that are kept at a URL: the store, and the copies that runs and studies make to it and from it."""
