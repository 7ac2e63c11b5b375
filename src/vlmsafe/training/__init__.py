"""The training loop: collect, score, constrain, improve, record."""
