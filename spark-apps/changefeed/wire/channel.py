"""What every gRPC channel of ours has in common."""

from __future__ import annotations

#: gRPC's own second attempt at a call is off: when a server leaves while a stream begins, it may lose the stream's end
#: (grpcio 1.85.1), and who reads the stream waits for ever. Whoever calls tries again himself.
OPTIONS = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.enable_retries", 0),
)
