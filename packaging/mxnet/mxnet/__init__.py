"""The name ``mxnet`` for flowmx."""

from flowmx.compat.package import install_as_mxnet

__flowmx__ = True  # install_as_mxnet replaces a module with this attribute

install_as_mxnet()
