"""The angles of rotary position embeddings, as models give their cosines and sines."""

import torch


def rotary_angles(positions, width, base=10000.0):
    """Return the cosines and sines of the angles by which `rotary` rotates (Su et al. 2021).

    Pair i of the features is rotated by position · base^(-2i/width), one half after the other.
    """
    dtype = torch.result_type(positions, 1.0)
    exponents = torch.arange(0, width, 2, dtype=dtype, device=positions.device) / width
    angles = positions.unsqueeze(-1) / base**exponents
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()
