"""Settings, methods and configuration files."""
