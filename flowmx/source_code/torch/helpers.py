"""Functions that are copied into the written file if it needs them. flowmx does not import this module."""
# mypy: ignore-errors

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def fix_gamma(norm):
    """Keep the weight (gamma) of a normalization at 1, as MXNet's fix_gamma does."""
    norm.weight.requires_grad_(False)
    return norm


class FrozenBatchNorm1d(nn.BatchNorm1d):
    """Batch normalization that uses the running statistics in training too (MXNet's use_global_stats)."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization that uses the running statistics in training too (MXNet's use_global_stats)."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class FrozenBatchNorm3d(nn.BatchNorm3d):
    """Batch normalization that uses the running statistics in training too (MXNet's use_global_stats)."""

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def masked_softmax(x, lengths, dim):
    """Compute softmax over the first elements of each row; the others get 0."""
    position = torch.arange(x.shape[dim], device=x.device).reshape(-1, *[1] * (x.ndim - dim - 1))
    mask = position < lengths.unsqueeze(dim)
    return F.softmax(x.masked_fill(~mask, float("-inf")), dim=dim).masked_fill(~mask, 0.0)


def top_both(top, dtype):
    """Return the values and the positions of topk."""
    return top.values, top.indices.to(dtype)


def sequence_mask(x, lengths, value, dim):
    """Replace what follows the end of each sequence; the batch is the other one of the first two axes."""
    position = torch.arange(x.shape[dim], device=x.device)
    mask = position[:, None] < lengths[None, :] if dim == 0 else position[None, :] < lengths[:, None]
    return x.masked_fill(~mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), value)


def sequence_last(x, lengths, dim):
    """Return the last element of each sequence."""
    batch = torch.arange(x.shape[1 - dim], device=x.device)
    last = lengths.long() - 1
    return x[last, batch] if dim == 0 else x[batch, last]


def sequence_reverse(x, lengths, dim):
    """Reverse the elements of each sequence before its end."""
    steps = x.shape[dim]
    position = torch.arange(steps, device=x.device)[:, None]
    source = torch.where(position < lengths[None, :], lengths.long()[None, :] - 1 - position, position)
    batch = torch.arange(x.shape[1 - dim], device=x.device)
    return x[source, batch] if dim == 0 else x[batch[:, None], source.T]


def lstm_outputs(output, states):
    """Return the output of an LSTM, its last state and its last cell."""
    return output, states[0], states[1]


def parts_of_heads(x, heads, parts):
    """Split (length, batch, heads * parts * size) into parts of (batch * heads, length, size)."""
    length, batch, width = x.shape
    pieces = x.reshape(length, batch * heads, parts, width // (heads * parts))
    return [pieces[:, :, index].transpose(0, 1) for index in range(parts)]


def attention_scores(x, heads):
    """Return the scaled products of the queries and keys in interleaved queries, keys and values."""
    query, key, _ = parts_of_heads(x, heads, 3)
    return query @ key.transpose(1, 2) / query.shape[-1] ** 0.5


def attention_sums(x, attention, heads):
    """Return the sums of the values, weighted by attention, as (length, batch, heads * size)."""
    return join_heads(attention @ parts_of_heads(x, heads, 3)[2], heads)


def cross_attention_scores(query, keys_values, heads):
    """Return the scaled products of queries, and of the keys in interleaved keys and values."""
    (query,) = parts_of_heads(query, heads, 1)
    return query @ parts_of_heads(keys_values, heads, 2)[0].transpose(1, 2) / query.shape[-1] ** 0.5


def cross_attention_sums(keys_values, attention, heads):
    """Return the sums of the values, weighted by attention, as (length, batch, heads * size)."""
    return join_heads(attention @ parts_of_heads(keys_values, heads, 2)[1], heads)


def join_heads(x, heads):
    """Join (batch * heads, length, size) to (length, batch, heads * size)."""
    length = x.shape[1]
    return x.transpose(0, 1).reshape(length, x.shape[0] // heads, -1)
