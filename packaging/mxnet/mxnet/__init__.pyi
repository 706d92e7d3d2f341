from flowmx import *

__version__: str
