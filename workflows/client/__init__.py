"""The agents' side of the HTTP contract: `dispatcher-agent` and what it is made of. Imports no Django."""

__version__ = "0.1.0"
