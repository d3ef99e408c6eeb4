"""Policies: actors with value functions, backed by language models, small networks, servers or scripts."""

from groundling.policies.action_generating import ActionGeneratingPolicy, ActionWritingPolicy
from groundling.policies.action_scoring import ActionHeadPolicy, ActionScoringPolicy, ActionTextPolicy
from groundling.policies.arguments import ReferenceModel, TrainedModel
from groundling.policies.chat_server import ChatServerPolicy
from groundling.policies.drrn import DRRNPolicy
from groundling.policies.nethack import NetHackObservations, NetHackPolicy
from groundling.policies.policy import (
    Action,
    Evaluated,
    Policy,
    RandomPolicy,
    Segment,
    Turn,
    TurnTokens,
    Work,
    policies,
)
from groundling.policies.prompt_policy import LanguageModelPolicy, PromptPolicy
from groundling.policies.symbolic import SymbolicPolicy
from groundling.policies.text_states import TokenPrompt, Writing, Written
from groundling.policies.token import TokenPolicy

register = policies.register
create = policies.create

__all__ = [
    "Action",
    "ActionGeneratingPolicy",
    "ActionHeadPolicy",
    "ActionScoringPolicy",
    "ActionTextPolicy",
    "ActionWritingPolicy",
    "ChatServerPolicy",
    "DRRNPolicy",
    "Evaluated",
    "LanguageModelPolicy",
    "NetHackObservations",
    "NetHackPolicy",
    "Policy",
    "PromptPolicy",
    "RandomPolicy",
    "ReferenceModel",
    "Segment",
    "SymbolicPolicy",
    "TokenPolicy",
    "TokenPrompt",
    "TrainedModel",
    "Turn",
    "TurnTokens",
    "Work",
    "Writing",
    "Written",
    "create",
    "register",
]
