"""Spending: what agents report that they used."""
