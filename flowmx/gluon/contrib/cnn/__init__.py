"""Further convolutions: ``mx.gluon.contrib.cnn``."""

from flowmx.gluon.contrib.cnn import conv_layers
from flowmx.gluon.contrib.cnn.conv_layers import DeformableConvolution, ModulatedDeformableConvolution

__all__ = ["DeformableConvolution", "ModulatedDeformableConvolution", "conv_layers"]
