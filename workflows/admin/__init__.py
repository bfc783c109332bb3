"""The admin's pages about runs and processes. They show, and call the verbs; no form writes what a machine owns."""

from workflows.admin.processes import ProcessAdmin
from workflows.admin.runs import RunAdmin

__all__ = ["ProcessAdmin", "RunAdmin"]
