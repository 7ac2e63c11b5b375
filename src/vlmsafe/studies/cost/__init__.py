"""What a study costs before anything starts: hours, memory, GPU-hours."""
