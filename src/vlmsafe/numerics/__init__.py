"""Numpy pieces that the learners and the RND scorer share."""
