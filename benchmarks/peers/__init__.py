"""Rules of other libraries, timed in turns with ours: `python benchmarks/peers`.

libraries    which library has which of our rules, and how it is called
round        one MNIST round of torch and ByzFL
environment  a Python environment of its own for these libraries
document     docs/performance.md and its chart
"""
