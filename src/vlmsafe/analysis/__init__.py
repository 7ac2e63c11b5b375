"""What runs show and what they do not: pure functions on arrays and tables, without torch and without simulators."""
