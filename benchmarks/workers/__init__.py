"""Timed programs: each runs under flowmx or a peer, named by its first argument, and prints one line of JSON."""
