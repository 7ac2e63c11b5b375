"""The learners: each one's loss in a file of its own, and the update they share."""
