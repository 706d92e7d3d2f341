"""Tests of devices, real and simulated."""
