"""The monitor: runs past their time."""
