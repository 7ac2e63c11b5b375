"""The paper's published tables, and ours side by side with them."""
