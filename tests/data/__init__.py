"""Tests of data: iterators, images, records."""
