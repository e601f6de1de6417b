"""A package by name: an installed one that is called tests would otherwise be found in its place."""
