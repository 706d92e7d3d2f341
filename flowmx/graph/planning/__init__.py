"""Planning: the order of the steps, layouts, lifetimes, and the offset of each value."""
