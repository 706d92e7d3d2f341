"""Random numbers and the densities of distributions."""
