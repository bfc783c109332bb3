from tests.staff import rung

__all__ = ["rung"]
