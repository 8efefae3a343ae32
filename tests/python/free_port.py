"""A port for torchrun, which takes it some seconds later. It is below those that the system gives to others at any time."""

import random
import socket


def free_port():
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port


if __name__ == "__main__":
    print(free_port())
