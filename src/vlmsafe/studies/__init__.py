"""Studies: arms x environments x seeds, and the paper's own numbers to compare them with."""
