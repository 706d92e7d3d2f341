"""Converters, one file for each family of operators, which holds both directions, export and import."""
