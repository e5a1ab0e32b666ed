"""The names of a test cluster's Services, NAME.NAMESPACE.svc.cluster.local, over UDP.

names.py ADDRESS KUBECTL
"""

import socket
import struct
import subprocess
import sys
import threading
import time

SUFFIX = ".svc.cluster.local"
NO_ERROR, NO_SUCH_NAME = 0, 3
A, INTERNET = 1, 1


def follow(kubectl, known):
    """Keeps the IPv4 address of each Service by its name. A name that does not exist is asked for often, since
    resolvers try several endings, so no answer waits for the API server."""
    fields = r'{.metadata.name} {.metadata.namespace} {.spec.clusterIP}{"\n"}'
    while True:
        watch = [kubectl, "get", "services", "-A", "--watch", "-o", f"jsonpath={fields}"]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as listed:
            for line in listed.stdout:
                name, namespace, address = line.split(" ")
                if address.count(".") == 3:
                    known[f"{name}.{namespace}{SUFFIX}"] = address.strip()
        # The API server has ended it, or does not answer.
        time.sleep(0.2)


def question(query):
    """The name in lower case, the type, and the end of the question (RFC 1035, section 4.1.2)."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    kind, _ = struct.unpack_from("!HH", query, at + 1)
    return ".".join(labels).lower(), kind, at + 5


def answer(query, find):
    name, kind, end = question(query)
    address = find(name) if name.endswith(SUFFIX) else None
    code = NO_ERROR if address else NO_SUCH_NAME
    is_found = address is not None and kind == A
    # An authoritative answer (section 4.1.1), with recursion as the query wants it.
    flags = 0x8400 | struct.unpack_from("!H", query, 2)[0] & 0x0100 | code
    head = query[:2] + struct.pack("!HHHHH", flags, 1, int(is_found), 0, 0)
    if not is_found:
        return head + query[12:end]
    # The name is that of the question, at byte 12; it holds for a second.
    record = struct.pack("!HHHIH", 0xC00C, A, INTERNET, 1, 4) + socket.inet_aton(address)
    return head + query[12:end] + record


def main():
    address, kubectl = sys.argv[1:]
    known = {}
    threading.Thread(target=follow, args=(kubectl, known), daemon=True).start()
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        query, peer = server.recvfrom(512)
        try:
            server.sendto(answer(query, known.get), peer)
        except (IndexError, ValueError, OSError, struct.error) as error:
            print(f"a query from {peer}: {error!r}", file=sys.stderr, flush=True)


main()
