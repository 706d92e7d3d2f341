"""Network summaries and drawings, memory plots and learning curves (``mx.viz``)."""

from flowmx.lazy import lazy_attributes
from flowmx.visualization.curves import Curves
from flowmx.visualization.dot import Dot
from flowmx.visualization.memory_plot import plot_memory
from flowmx.visualization.network_plot import plot_network
from flowmx.visualization.table import print_summary

__all__ = ["Curves", "Dot", "plot_memory", "plot_network", "print_summary"]

__getattr__, __dir__ = lazy_attributes(__name__)
