"""Data room: what `mx.io`, `mx.image`, `mx.recordio` and `mx.gluon.data` have in common. Nothing here knows NDArrays.

`codecs` decodes and encodes image files, `idx` reads IDX files (MNIST's), `image_lists` reads lists of images (.lst),
`records` are RecordIO files, `augmentation` changes images of bytes, `rng` is the generator that augmentations draw
from, `sharding` splits instances among workers, `batch_order` selects the instances of each batch.
"""
