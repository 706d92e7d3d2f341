"""Tests of the repository: imports, words, pages, examples, packaging."""
