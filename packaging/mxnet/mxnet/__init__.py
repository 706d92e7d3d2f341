"""The name ``mxnet`` for flowmx."""

from flowmx.compat.package import install_as_mxnet

__flowmx__ = True  # says to install_as_mxnet that this module is to be replaced

install_as_mxnet()
