from governance.models.agent import Agent, AgentActivity, Role
from governance.models.department import Department
from governance.models.token import AgentToken

__all__ = ["Agent", "AgentActivity", "AgentToken", "Department", "Role"]
