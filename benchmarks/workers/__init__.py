"""Timed programs. Each runs under flowmx or the peer that its first argument names, and prints one line of JSON."""
