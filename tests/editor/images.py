"""Images are arrays."""

import flowmx as mx

image = mx.nd.zeros((20, 30, 3), dtype="uint8")
small = mx.image.imresize(image, 15, 10)
crop, where = mx.image.center_crop(small, (8, 8))
assert crop.shape == (8, 8, 3) and where == (3, 1, 8, 8)
augmenters = mx.image.CreateAugmenter(data_shape=(3, 8, 8), rand_mirror=True)
for augmenter in augmenters:
    crop = augmenter(crop)
assert crop.shape == (8, 8, 3)
