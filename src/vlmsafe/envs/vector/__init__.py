"""Worker processes, each with an environment of its own, and the frames that come out of them."""
