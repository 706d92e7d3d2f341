"""Source code of other frameworks."""
