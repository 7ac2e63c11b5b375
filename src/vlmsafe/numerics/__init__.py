"""Numpy pieces that learners and the RND scorer share."""
