"""Tests of symbols."""
