"""Reports on plans, in words and pictures, and memory estimates of networks."""
