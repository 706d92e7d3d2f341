"""Tests of modules, optimizers, metrics and checkpoints."""
