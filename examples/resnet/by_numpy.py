"""The tiny residual network in numpy, with its derivatives by hand.

Weights and gradients of all layers are parts of two vectors, so that the gradients of a step are
averaged over all ranks in one call.
"""

import numpy
import rlaunch

CLASSES, GROUPS = 10, 4
RATE, MOMENTUM = 0.05, 0.9
DTYPES = {"fp32": numpy.float32, "float64": numpy.float64}


class Layer:
    """Something with a forward and a backward pass.

    ``initial`` has its weights by name. Once trained together they are attributes of that name,
    and their gradients are attributes of that name behind ``d_``.
    """

    initial = {}

    def layers(self):
        """Itself and those inside, in the order of their weights."""
        return [self]


class Conv(Layer):
    """Square filters, with as much of zeros around an image as keeps its size."""

    def __init__(self, random, inputs, outputs, side=3, stride=1):
        self.side, self.stride = side, stride
        scale = (2 / (inputs * side * side)) ** 0.5
        self.initial = {"filters": random.normal(0, scale, (outputs, inputs * side * side))}

    def forward(self, x):
        count, channels, height, width = x.shape
        edge, stride = self.side // 2, self.stride
        padded = numpy.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
        windows = numpy.lib.stride_tricks.sliding_window_view(
            padded, (self.side, self.side), axis=(2, 3)
        )[:, :, ::stride, ::stride]
        self.shape, self.padded_shape = x.shape, padded.shape
        rows, columns = windows.shape[2:4]
        patches = windows.transpose(0, 2, 3, 1, 4, 5)
        self.patches = patches.reshape(count * rows * columns, channels * self.side**2)
        y = self.patches @ self.filters.T
        return y.reshape(count, rows, columns, -1).transpose(0, 3, 1, 2)

    def backward(self, dy):
        count, outputs, rows, columns = dy.shape
        dy = dy.transpose(0, 2, 3, 1).reshape(-1, outputs)
        self.d_filters[...] = dy.T @ self.patches
        patches = (dy @ self.filters).reshape(count, rows, columns, -1, self.side, self.side)
        padded, stride = numpy.zeros(self.padded_shape, dy.dtype), self.stride
        for i in range(self.side):
            for j in range(self.side):
                end_i, end_j = i + stride * rows, j + stride * columns
                part = patches[..., i, j].transpose(0, 3, 1, 2)
                padded[:, :, i:end_i:stride, j:end_j:stride] += part
        edge, (height, width) = self.side // 2, self.shape[2:]
        return padded[:, :, edge : edge + height, edge : edge + width]


class Norm(Layer):
    """To mean 0 and variance 1, over the batch for each channel, or over groups of channels for
    each image."""

    def __init__(self, kind, channels):
        self.kind, self.channels = kind, channels
        self.initial = {"gain": numpy.ones(channels), "offset": numpy.zeros(channels)}

    def _parts(self, x):
        """The same with everything that is normalised together in the dimensions of ``over``."""
        if self.kind == "batch":
            self.over = (0, 2)
            return x.reshape(*x.shape[:2], -1)
        self.over = (2,)
        return x.reshape(len(x), GROUPS, -1)

    def _by_channel(self, weight):
        return weight.reshape(1, -1, 1, 1)

    def forward(self, x):
        parts = self._parts(x)
        centred = parts - parts.mean(self.over, keepdims=True)
        self.inverse = 1 / numpy.sqrt((centred**2).mean(self.over, keepdims=True) + 1e-5)
        self.normal = (centred * self.inverse).reshape(x.shape)
        return self.normal * self._by_channel(self.gain) + self._by_channel(self.offset)

    def backward(self, dy):
        self.d_gain[...] = (dy * self.normal).sum((0, 2, 3))
        self.d_offset[...] = dy.sum((0, 2, 3))
        slope, normal = self._parts(dy * self._by_channel(self.gain)), self._parts(self.normal)
        mean = slope.mean(self.over, keepdims=True)
        along = (slope * normal).mean(self.over, keepdims=True)
        return ((slope - mean - normal * along) * self.inverse).reshape(dy.shape)


class Relu(Layer):
    def forward(self, x):
        self.passes = x > 0
        return x * self.passes

    def backward(self, dy):
        return dy * self.passes


class Chain(Layer):
    """One layer after the other."""

    def __init__(self, *parts):
        self.parts = parts

    def layers(self):
        return [layer for part in self.parts for layer in part.layers()]

    def forward(self, x):
        for part in self.parts:
            x = part.forward(x)
        return x

    def backward(self, dy):
        for part in reversed(self.parts):
            dy = part.backward(dy)
        return dy


class Residual(Layer):
    """What two convolutions change of their input, added to it."""

    def __init__(self, random, norm, inputs, outputs, stride):
        self.body = Chain(
            Conv(random, inputs, outputs, stride=stride),
            Norm(norm, outputs),
            Relu(),
            Conv(random, outputs, outputs),
            Norm(norm, outputs),
        )
        changes = stride > 1 or inputs != outputs
        shortcut = [Conv(random, inputs, outputs, 1, stride), Norm(norm, outputs)]
        self.shortcut = Chain(*(shortcut if changes else []))
        self.relu = Relu()

    def layers(self):
        return self.body.layers() + self.shortcut.layers()

    def forward(self, x):
        return self.relu.forward(self.body.forward(x) + self.shortcut.forward(x))

    def backward(self, dy):
        dy = self.relu.backward(dy)
        return self.body.backward(dy) + self.shortcut.backward(dy)


class Mean(Layer):
    """Of each channel."""

    def forward(self, x):
        self.shape = x.shape
        return x.mean((2, 3))

    def backward(self, dy):
        pixels = self.shape[2] * self.shape[3]
        return numpy.broadcast_to(dy[:, :, None, None] / pixels, self.shape)


class Linear(Layer):
    def __init__(self, random, inputs, outputs):
        scale = inputs**-0.5
        weight = random.uniform(-scale, scale, (inputs, outputs))
        self.initial = {"weight": weight, "bias": numpy.zeros(outputs)}

    def forward(self, x):
        self.x = x
        return x @ self.weight + self.bias

    def backward(self, dy):
        self.d_weight[...] = self.x.T @ dy
        self.d_bias[...] = dy.sum(0)
        return dy @ self.weight.T


def tiny(random, norm):
    """The same network as by_torch.py has under this name."""
    return Chain(
        Conv(random, 3, 16),
        Norm(norm, 16),
        Relu(),
        Residual(random, norm, 16, 16, 1),
        Residual(random, norm, 16, 32, 2),
        Mean(),
        Linear(random, 32, CLASSES),
    )


def join(net, dtype):
    """Makes the weights of all layers parts of one vector, and their gradients of another."""
    named = [(layer, name) for layer in net.layers() for name in layer.initial]
    size = sum(layer.initial[name].size for layer, name in named)
    weights, gradients = numpy.empty(size, dtype), numpy.zeros(size, dtype)
    end = 0
    for layer, name in named:
        initial = layer.initial[name]
        begin, end = end, end + initial.size
        for vector, attribute in ((weights, name), (gradients, "d_" + name)):
            setattr(layer, attribute, vector[begin:end].reshape(initial.shape))
        getattr(layer, name)[...] = initial
    return weights, gradients


def cross_entropy(scores, labels):
    """The mean loss of a batch, and its derivative by the scores."""
    rows = numpy.arange(len(labels))
    scores = scores - scores.max(1, keepdims=True)
    chances = numpy.exp(scores) / numpy.exp(scores).sum(1, keepdims=True)
    loss = -numpy.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    return float(loss), chances / len(labels)


def images(first, count, side):
    """Images of the whole batch from number ``first``, the same whoever makes them."""
    randoms = [numpy.random.default_rng([1, first + i]) for i in range(count)]
    pixels = numpy.stack([random.normal(size=(3, side, side)) for random in randoms])
    return pixels, numpy.array([random.integers(CLASSES) for random in randoms])


class Training:
    """The network, this rank's images, and the other ranks."""

    device = "cpu"

    def __init__(self, args):
        self.comm = rlaunch.init()
        self.rank, self.size = self.comm.rank, self.comm.size
        dtype = DTYPES[args.dtype]
        self.net = tiny(numpy.random.default_rng(0), args.norm)
        self.weights, self.gradients = join(self.net, dtype)
        self.speed = numpy.zeros_like(self.weights)
        pixels, self.labels = images(self.rank * args.batch_size, args.batch_size, args.image_size)
        self.pixels = pixels.astype(dtype)

    def step(self):
        """Trains on this rank's images; their loss before."""
        loss, slope = cross_entropy(self.net.forward(self.pixels), self.labels)
        self.net.backward(slope)
        self.comm.all_reduce(self.gradients)
        self.speed = MOMENTUM * self.speed - RATE / self.size * self.gradients
        self.weights += self.speed
        return loss

    def mean(self, value):
        """Of what all ranks give."""
        values = numpy.array([value])
        self.comm.all_reduce(values)
        return values[0] / self.size

    def close(self):
        """Nothing is to be ended."""
