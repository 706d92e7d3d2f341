"""The fuzzer of modes: random networks give the same in every mode of execution.

| file | what it is about |
|---|---|
| `parts.py` | blocks that networks are put together of, besides Gluon's |
| `network.py` | a network as plain data, and the text of the program that makes it |
| `layers.py`, `recurrent.py`, `operators.py`, `losses.py` | the tables of what is drawn: a function for each layer |
| `drawing.py` | random networks |
| `runners.py` | what carries out a network's steps: Gluon, an executor, a module |
| `modes.py` | the table of modes |
| `bounds.py` | how far from the reference a mode may be |
| `trial.py` | a network in several modes, compared |
| `shrinking.py` | the smallest network that still shows a difference |
| `run.py` | `python -m tests.modes.run [networks] [seed]`, and programs that show a difference |
"""
