"""Augmentation of images of bytes, as MXNet's default augmenter does it for `ImageRecordIter`.

`augment` is the augmenter, a function of an image and its random numbers; `geometry` has what it does with pixels'
places, `color_jitter` what it does with their colours, `normalize` puts the result into a batch, `options` are its
parameters.
"""
