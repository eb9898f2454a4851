"""Reads what passes over the loopback interface, which needs CAP_NET_RAW."""

import collections
import contextlib
import socket
import struct
import threading

SO_RCVBUFFORCE = 33  # of Linux; Python has no name for it


class Recorder:
    """What was sent over connections of this machine, up to `most` bytes of each; OSError where that is forbidden."""

    def __init__(self, most):
        self.most = most
        self.streams = collections.defaultdict(dict)  # (source port, destination port) -> {sequence number: bytes}
        self.kept = collections.Counter()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        with contextlib.suppress(PermissionError):
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                packet, address = self.socket.recvfrom(1 << 17)
                if address[2] != socket.PACKET_OUTGOING:  # or each packet would come twice
                    self.keep(packet[14:])

    def keep(self, packet):
        if packet[9] != socket.IPPROTO_TCP:
            return
        segment = packet[4 * (packet[0] & 15) : int.from_bytes(packet[2:4], "big")]
        source, destination, number = struct.unpack_from(">HHI", segment)
        data, key = segment[4 * (segment[12] >> 4) :], (source, destination)
        if data and self.kept[key] < self.most:
            self.kept[key] += len(data)
            self.streams[key].setdefault(number, data)

    def stop(self):
        if self.ended.is_set():
            return
        self.ended.set()
        self.thread.join()
        self.socket.close()

    def all(self, ports):
        """(destination port, bytes) of each direction of each connection to these ports, as far as none is missing."""
        for (source, destination), pieces in list(self.streams.items()):
            if source not in ports and destination not in ports:
                continue
            numbers = sorted(pieces.copy())
            whole, following = [], numbers[0]
            for number in numbers:
                if number != following:
                    break
                whole.append(pieces[number])
                following = number + len(pieces[number])
            yield destination, b"".join(whole)

    def to(self, port):
        return [stream for destination, stream in self.all({port}) if destination == port]
