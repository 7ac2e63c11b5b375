"""Export runs, evaluations and audit findings to other tools: CSV files, MLflow and Weights & Biases."""
