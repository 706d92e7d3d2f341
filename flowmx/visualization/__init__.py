"""Networks as a table, as a drawing, and the memory of a bound one as a picture (``mx.viz``)."""

from flowmx.visualization.curves import Curves
from flowmx.visualization.dot import Dot
from flowmx.visualization.drawing import plot_network
from flowmx.visualization.memory import plot_memory
from flowmx.visualization.table import print_summary

__all__ = ["Curves", "Dot", "plot_memory", "plot_network", "print_summary"]
