"""The converters: one module per family of operators, for export and import."""
