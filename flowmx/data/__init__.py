"""Shared code of `mx.io`, `mx.image`, `mx.recordio` and `mx.gluon.data`, independent of NDArray.

`codecs` decodes and encodes image files, `idx` reads IDX files (MNIST's), `image_lists` reads lists of images (.lst),
`records` are RecordIO files, `augmentation` changes uint8 images, `rng` is the generator that augmentations draw
from, `sharding` splits samples among workers, `batch_order` selects the samples of each batch.
"""
