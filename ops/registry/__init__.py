"""The operator registry: base class, parameters, dtypes, kernels, argument parsing and documentation."""
