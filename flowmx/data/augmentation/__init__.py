"""Augmentation of uint8 images, as MXNet's default augmenter does it for `ImageRecordIter`.

`augment` is the augmenter, a function of an image and its random numbers; `box_augment` is that of images with boxes.
`geometry` moves pixels, `box_geometry` computes with boxes, `color_jitter` changes colors, `normalize` writes the
result into a batch, `options` holds the parameters.
"""
