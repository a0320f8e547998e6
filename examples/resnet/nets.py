"""Residual networks for images, in torch."""

from torch import nn


def conv(inputs, outputs, side=3, stride=1):
    return nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)


class Residual(nn.Module):
    """What a few layers change of their input, added to it."""

    def __init__(self, norm, body, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(*body)
        changes = stride > 1 or inputs != outputs
        shortcut = [conv(inputs, outputs, 1, stride), norm(outputs)]
        self.shortcut = nn.Sequential(*(shortcut if changes else []))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def basic(norm, inputs, width, stride):
    """Two convolutions; with how many channels come out."""
    first = [conv(inputs, width, stride=stride), norm(width), nn.ReLU()]
    body = [*first, conv(width, width), norm(width)]
    return Residual(norm, body, inputs, width, stride), width


def bottleneck(norm, inputs, width, stride):
    """A convolution between fewer channels; with how many come out."""
    outputs = 4 * width
    first = [conv(inputs, width, 1), norm(width), nn.ReLU()]
    middle = [conv(width, width, stride=stride), norm(width), nn.ReLU()]
    body = [*first, *middle, conv(width, outputs, 1), norm(outputs)]
    return Residual(norm, body, inputs, outputs, stride), outputs


def stages(norm, block, depths, inputs, width):
    """Blocks of each width, which doubles where images become half as wide."""
    layers = []
    for stage, depth in enumerate(depths):
        for i in range(depth):
            stride = 2 if stage and i == 0 else 1
            layer, inputs = block(norm, inputs, width << stage, stride)
            layers.append(layer)
    return layers, inputs


# The block of a network, and how many of each width.
NETWORKS = {"resnet18": (basic, (2, 2, 2, 2)), "resnet50": (bottleneck, (3, 4, 6, 3))}


def norm_of(kind, groups):
    """Normalises over the batch, or over groups of channels for each image."""
    if kind == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(groups, channels)


def build(model, norm="batch", classes=1000):
    """A network by its name: resnet18, resnet50, or tiny for small images and machines."""
    if model == "tiny":
        norm = norm_of(norm, 4)
        stem = [conv(3, 16), norm(16), nn.ReLU()]
        body, outputs = stages(norm, basic, (1, 1), 16, 16)
    else:
        norm = norm_of(norm, 32)
        stem = [conv(3, 64, 7, 2), norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        body, outputs = stages(norm, *NETWORKS[model], 64, 64)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, classes)]
    return nn.Sequential(*stem, *body, *head)
