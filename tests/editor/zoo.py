"""A network of the model zoo."""

from flowmx import nd
from flowmx.gluon.model_zoo import vision

net = vision.squeezenet1_1(classes=3)
net.initialize()
assert net.features(nd.ones((1, 3, 32, 32))).shape[:2] == (1, 512)
names = [name for name in net.collect_params() if name.endswith("weight")]
assert names
again = vision.get_model("mobilenet0.25", pretrained=False)
assert again.collect_params()
