"""Algorithms: they learn from a rollout, and know neither its envs nor what an action is."""

from groundling.algorithms.advantages import generalized_advantage
from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.bc import BehaviouralCloning
from groundling.algorithms.drrn import DRRN
from groundling.algorithms.losses import PPOLoss, ppo_loss
from groundling.algorithms.ppo import PPO
from groundling.algorithms.rollout import Rollout

register = algorithms.register
create = algorithms.create

__all__ = [
    "DRRN",
    "PPO",
    "Algorithm",
    "BehaviouralCloning",
    "PPOLoss",
    "Rollout",
    "create",
    "generalized_advantage",
    "ppo_loss",
    "register",
]
