"""Sends garbage to a node: `garbage.py HOST PORT [COUNT]`. The node must go on; this program only sends."""

import os
import random
import socket
import struct
import sys

SEED = int(os.environ.get("SEED", random.randrange(1 << 30)))


def messages(generator):
    """Nothing, noise, and frames whose length says what is not so."""
    yield b""
    yield generator.randbytes(generator.randrange(1, 4096))
    yield b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"
    yield struct.pack("<I", 0xFFFFFFFF) + generator.randbytes(64)
    yield struct.pack("<Q", 1 << 63) + generator.randbytes(64)
    yield bytes(generator.randrange(1, 1 << 16))
    yield b"SLUICE" + generator.randbytes(generator.randrange(0, 256))


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    print(f"seed {SEED}")
    generator = random.Random(SEED)
    for _ in range(count):
        for message in messages(generator):
            with socket.create_connection((host, port), timeout=10) as connection:
                try:
                    connection.sendall(message)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except TimeoutError:
                    print(f"FAIL: the node kept a connection of garbage for 10 s ({message[:16]!r}...)")
                    return 1
                except OSError:
                    pass  # closed by the node in the middle, as it may
    print("PASS")


if __name__ == "__main__":
    sys.exit(main())
