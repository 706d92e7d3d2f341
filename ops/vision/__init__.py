"""Images and vision: changes of images, sampling, bounding boxes, regions."""
