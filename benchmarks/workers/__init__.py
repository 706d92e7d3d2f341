"""What is timed. Each script runs under flowmx or a peer, by its first argument, and prints one line of JSON."""
