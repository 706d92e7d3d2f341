"""The wire: HTTP peers that exchange tensors. It knows arrays of bytes and no training code."""
