"""``mxnet.contrib.amp.lists``: which operators compute in which precision."""
