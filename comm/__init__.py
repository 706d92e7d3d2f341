"""The wire: HTTP peers that exchange tensors. It handles arrays of bytes and depends on no training code."""
