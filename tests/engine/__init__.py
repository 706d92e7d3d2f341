"""Tests of the engine and of event loops."""
