"""What is compared with what: claims, settings that differ, outcomes and their tests."""
