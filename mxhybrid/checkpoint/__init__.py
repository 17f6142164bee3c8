"""Checkpoints of a whole training: save and restore the weights of a net and the state of its Trainer."""
from .save_load import Checkpoint, gather, load, save

__all__ = ['Checkpoint', 'gather', 'load', 'save']
