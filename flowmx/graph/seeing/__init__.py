"""What the compiler did, in words and pictures, and what a network would need."""
