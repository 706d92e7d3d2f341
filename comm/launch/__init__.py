"""Starting the nodes of a job."""
