"""Launching jobs."""
