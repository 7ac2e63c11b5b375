"""Environments behind one interface. Simulators are imported only when one is made."""
