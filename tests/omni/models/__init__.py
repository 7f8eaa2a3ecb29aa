"""Makers of tiny checkpoints with random weights, in layouts that vLLM-Omni's own loaders read; nothing is downloaded.

Each module's ``make(folder)`` writes one model, the same weights every time. What is small is what a configuration may
make small; token ids that vLLM-Omni's code has as numbers stay what they are, and with them the size of a vocabulary.
"""
