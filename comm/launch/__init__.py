"""Start the nodes of a job."""
