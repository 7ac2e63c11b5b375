"""Statistics and diagnostics: pure functions on arrays and tables, without torch and without simulators."""
