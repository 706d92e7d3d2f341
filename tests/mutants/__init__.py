"""Mutation testing: small faults put into the source at random, which the tests closest to them have to find."""
