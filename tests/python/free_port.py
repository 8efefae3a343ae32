"""Prints a free port for torchrun, which opens it some seconds later. The port is outside the range from which the system
assigns ports, so no other program gets it meanwhile."""

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
