"""Policies: they turn observations into actions, and evaluate stored actions with gradients."""

from groundling.policies.action_scoring import ActionScoringPolicy
from groundling.policies.policy import Action, Evaluation, Policy, policies
from groundling.policies.random import RandomPolicy

register = policies.register
create = policies.create

__all__ = ["Action", "ActionScoringPolicy", "Evaluation", "Policy", "RandomPolicy", "create", "register"]
