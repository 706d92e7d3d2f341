"""Reports on plans as text and pictures, and memory estimates of networks."""
