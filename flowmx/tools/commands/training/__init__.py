"""``python -m flowmx train``: data and models by name, the training loop, and its setup."""
