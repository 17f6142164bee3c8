"""Checkpoints of a whole training: what a net and its Trainer have learned, saved and put back."""
from .save_load import Checkpoint, gather, load, save

__all__ = ['Checkpoint', 'gather', 'load', 'save']
