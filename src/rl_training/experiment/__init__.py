"""Experiments: the registry of recipes, running them, and reporting on them."""
