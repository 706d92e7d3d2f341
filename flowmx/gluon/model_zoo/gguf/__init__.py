"""Models with the weights of GGUF files."""
