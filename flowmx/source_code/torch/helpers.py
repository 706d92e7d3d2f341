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


def box_anchors(x, sizes, ratios, steps, offsets, clip):
    """Return anchors around each position of a feature map, as corners (1, anchors, 4)."""
    height, width = x.shape[2:]
    down, across = steps if min(steps) > 0 else (1 / height, 1 / width)
    y = (torch.arange(height, device=x.device, dtype=torch.float32) + offsets[0]) * down
    x = (torch.arange(width, device=x.device, dtype=torch.float32) + offsets[1]) * across
    kinds = [*((size, ratios[0]) for size in sizes), *((sizes[0], ratio) for ratio in ratios[1:])]
    size, ratio = torch.tensor(kinds, device=x.device, dtype=torch.float32).unbind(1)
    half_width, half_height = size * height / width * ratio.sqrt() / 2, size / ratio.sqrt() / 2
    y, x = y[:, None, None], x[None, :, None]
    corners = torch.broadcast_tensors(x - half_width, y - half_height, x + half_width, y + half_height)
    anchors = torch.stack(corners, dim=-1).reshape(1, -1, 4)
    return anchors.clamp(0, 1) if clip else anchors


def suppress(boxes, kinds, threshold, is_reached):
    """Return the mask of the boxes, by descending score, that no better one of the same kind overlaps too much."""
    low, high = boxes[:, :2], boxes[:, 2:]
    sides = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0)
    area, common = (high - low).clamp(min=0).prod(1), sides.prod(2)
    union = area[:, None] + area - common
    overlap = torch.where(common > 0, common / union, torch.zeros_like(common))
    drops = overlap >= threshold if is_reached else overlap > threshold
    if kinds is not None:
        drops = drops & (kinds[:, None] == kinds)
    survives = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    for index in range(len(boxes)):
        if survives[index]:
            survives[index + 1 :] &= ~drops[index, index + 1 :]
    return survives


@torch.no_grad()
def detect_boxes(scores, offsets, anchors, clip, threshold, nms_threshold, force_suppress, variances, topk):
    """Return (class, score, box) of the detected objects, with class -1 for suppressed ones and -1 in other rows."""
    best, kinds = scores[:, 1:].max(1)
    center, sides = (anchors[0, :, :2] + anchors[0, :, 2:]) / 2, anchors[0, :, 2:] - anchors[0, :, :2]
    offsets = offsets.reshape(*best.shape, 4) * torch.tensor(variances, device=offsets.device, dtype=offsets.dtype)
    middle, half = offsets[..., :2] * sides + center, offsets[..., 2:].exp() * sides / 2
    boxes = torch.cat([middle - half, middle + half], dim=-1)
    boxes = boxes.clamp(0, 1) if clip else boxes
    result = torch.full((*best.shape, 6), -1.0, device=scores.device, dtype=scores.dtype)
    for sample in range(len(scores)):
        places = (best[sample] >= threshold).nonzero()[:, 0]
        order = places[best[sample, places].argsort(descending=True, stable=True)]
        count = min(len(places), topk) if topk > 0 else len(places)
        order = torch.cat([order[:count], places[count:]])
        kind = kinds[sample, order].to(scores.dtype)
        if 0 < nms_threshold <= 1:
            compared = None if force_suppress else kind[:count]
            survives = suppress(boxes[sample, order[:count]], compared, nms_threshold, True)
            kind[:count][~survives] = -1
            kind[count:] = -1
        result[sample, : len(order), 0], result[sample, : len(order), 1] = kind, best[sample, order]
        result[sample, : len(order), 2:] = boxes[sample, order]
    return result


def box_nms(x, threshold, valid, topk, start, score, kind, background, force_suppress):
    """Return the boxes by descending score without those that overlap better ones; the other rows are -1."""
    flat = x.reshape(-1, *x.shape[-2:])
    result = torch.full_like(flat, -1.0)
    for sample, rows in enumerate(flat):
        is_valid = rows[:, score] > valid
        if kind >= 0:
            is_valid &= rows[:, kind] != background
        places = is_valid.nonzero()[:, 0]
        order = places[rows[places, score].argsort(descending=True, stable=True)]
        order = order[:topk] if topk > 0 else order
        kinds = rows[order, kind].long() if kind >= 0 and not force_suppress else None
        order = order[suppress(rows[order, start : start + 4], kinds, threshold, False)]
        result[sample, : len(order)] = rows[order]
    return result.reshape(x.shape)
