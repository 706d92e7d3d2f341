"""Plans put to the test: random legal orders, and free memory overwritten."""
