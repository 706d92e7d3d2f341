"""A server of a distributed store: a pure state machine, its storage, and the service around it."""
