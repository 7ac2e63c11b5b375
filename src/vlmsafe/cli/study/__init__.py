"""vlmsafe study: one module per group of verbs, and what they share."""
