"""Train constrained-RL agents with vision-language signals, and audit whether the signal made them safer."""
