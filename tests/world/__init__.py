"""A world from one seed: a whole job in one thread, under simulated time, with a simulated network and faults."""
