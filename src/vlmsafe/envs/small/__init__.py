"""Small problems without a simulator, with known answers."""
