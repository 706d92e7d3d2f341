"""What a plan is made of: the order of the steps, layouts, lives, and where each value lies."""
