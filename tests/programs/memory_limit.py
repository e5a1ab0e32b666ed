"""The lease's memory is what the program sees and all that it gets. MEMORY: the lease's size in bytes."""

import os
import random
import sys

from driver import OUT_OF_MEMORY, CudaError, allocate, attach, free, memory_info

LIMIT = int(os.environ["MEMORY"])
SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


def fill(generator, largest):
    """Allocates blocks of random sizes until the driver says no."""
    blocks = []
    while True:
        size = generator.randrange(1, largest)
        try:
            blocks.append((allocate(size), size))
        except CudaError as error:
            assert error.code == OUT_OF_MEMORY, error
            return blocks, size


def main():
    print(f"seed {SEED}")
    generator = random.Random(SEED)
    attach()
    free_bytes, total = memory_info()
    assert total == LIMIT, f"the program sees {total} bytes, leased are {LIMIT}"
    assert free_bytes <= total
    for round_number in range(3):
        blocks, refused = fill(generator, LIMIT // 8)
        held = sum(size for _, size in blocks)
        left, total = memory_info()
        print(f"round {round_number}: {len(blocks)} blocks, {held} bytes held, {left} left, {refused} refused")
        assert held <= LIMIT, f"{held} bytes allocated of {LIMIT}"
        assert held + refused > LIMIT * 0.8, "refused while more than a fifth was free"
        assert total == LIMIT and left <= LIMIT - held
        for address, _ in blocks:
            free(address)
        assert memory_info()[0] == free_bytes, "freed memory did not come back"
    try:
        allocate(LIMIT + 1)
        raise AssertionError("an allocation larger than the lease succeeded")
    except CudaError as error:
        assert error.code == OUT_OF_MEMORY, error
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())
