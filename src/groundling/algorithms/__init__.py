"""Algorithms, which learn from rollouts and do not depend on the env or the type of its actions."""

from groundling.algorithms.a2c import A2C
from groundling.algorithms.advantages import generalized_advantage, standardise, v_trace
from groundling.algorithms.algorithm import Algorithm, algorithms
from groundling.algorithms.appo import APPO
from groundling.algorithms.bc import BehaviouralCloning
from groundling.algorithms.drrn import DRRN
from groundling.algorithms.grpo import GRPO, RLOO, GiGPO, ReinforcePlusPlus
from groundling.algorithms.losses import PPOLoss, ppo_loss
from groundling.algorithms.ppo import NLPO, PPO
from groundling.algorithms.preferences import DPO, KTO, dpo_loss, kto_loss
from groundling.algorithms.regularizers import KLPenalty
from groundling.algorithms.rollout import Rollout
from groundling.algorithms.trpo import TRPO

register = algorithms.register
create = algorithms.create

__all__ = [
    "A2C",
    "APPO",
    "DPO",
    "DRRN",
    "GRPO",
    "KTO",
    "NLPO",
    "PPO",
    "RLOO",
    "TRPO",
    "Algorithm",
    "BehaviouralCloning",
    "GiGPO",
    "KLPenalty",
    "PPOLoss",
    "ReinforcePlusPlus",
    "Rollout",
    "create",
    "dpo_loss",
    "generalized_advantage",
    "kto_loss",
    "ppo_loss",
    "register",
    "standardise",
    "v_trace",
]
