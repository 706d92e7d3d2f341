"""The operator registry: the base class, parameters, dtypes, and argument parsing and documentation of calls."""
