"""Images and vision: image transforms, sampling, bounding boxes, regions of interest."""
