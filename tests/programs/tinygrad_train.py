"""Trains a small network with tinygrad on the GPU and checks that the loss falls.

tinygrad needs no CUDA toolkit: it writes PTX itself and hands it to the driver.
Run it as `sluice run -- python tinygrad_train.py`; it knows nothing of Sluice.
"""
import os
import random
import sys
import time

os.environ.setdefault("DEV", "CUDA")
from tinygrad import Context, Device, Tensor, dtypes, nn  # noqa: E402

STEPS = int(os.environ.get("STEPS", "40"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


class Network:
    """Two layers that learn which ring a point of the plane lies in."""

    def __init__(self):
        self.hidden = nn.Linear(2, 64)
        self.output = nn.Linear(64, 3)

    def __call__(self, points):
        return self.output(self.hidden(points).tanh())


def rings(count, generator):
    """Points in the square [-1, 1]^2 and the ring (0, 1 or 2) that each lies in."""
    points = [(generator.uniform(-1, 1), generator.uniform(-1, 1)) for _ in range(count)]
    radii = [(x * x + y * y) ** 0.5 for x, y in points]
    return Tensor(points), Tensor([0 if r < 0.5 else 1 if r < 0.9 else 2 for r in radii], dtype=dtypes.int32)


def check_arithmetic(generator):
    """Integers come out exact, whatever the back end."""
    count = 1000
    left = [generator.randrange(-1 << 20, 1 << 20) for _ in range(count)]
    right = [generator.randrange(1, 1 << 10) for _ in range(count)]
    got = (Tensor(left, dtype=dtypes.int32) * 3 - Tensor(right, dtype=dtypes.int32)).tolist()
    assert got == [a * 3 - b for a, b in zip(left, right)], "integer arithmetic differs"
    total = Tensor(right, dtype=dtypes.int32).sum().item()
    assert total == sum(right), f"sum is {total}, expected {sum(right)}"


def main():
    print(f"seed {SEED}, device {Device.DEFAULT}", flush=True)
    generator = random.Random(SEED)
    Tensor.manual_seed(SEED)
    check_arithmetic(generator)

    points, labels = rings(512, generator)
    network = Network()
    optimizer = nn.optim.Adam(nn.state.get_parameters(network), lr=0.03)
    losses, begin = [], time.monotonic()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = network(points).sparse_categorical_crossentropy(labels).backward()
        with Context(TRAINING=1):
            optimizer.step()
        losses.append(loss.item())
        if step % 5 == 0 or step == STEPS - 1:
            print(f"step {step:3}  loss {losses[-1]:.4f}", flush=True)
    accuracy = (network(points).argmax(axis=1) == labels).mean().item()

    print(f"{STEPS} steps in {time.monotonic() - begin:.1f} s, accuracy {accuracy:.2f}")
    print(f"first_loss {losses[0]:.4f}\nlast_loss {losses[-1]:.4f}")
    fell = losses[-1] < 0.6 * losses[0]
    print("PASS" if fell else f"FAIL: the loss went from {losses[0]:.4f} to {losses[-1]:.4f}, not below 60 %")
    return 0 if fell else 1


if __name__ == "__main__":
    sys.exit(main())
