"""Results for people: diagnoses of runs, their tables as text, their figures. Computation is in `vlmsafe.analysis`."""
