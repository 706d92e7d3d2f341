"""A server of a distributed store: a pure state machine, what it keeps values in, and the service around it."""
