"""Designs for the audit to be tried on: the published one, a clean one, and clean ones with one defect planted."""
