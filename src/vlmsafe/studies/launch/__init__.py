"""Where the commands of a study run: on this machine, or on a Ray cluster."""
