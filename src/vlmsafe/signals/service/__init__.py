"""One model in memory that scores the frames of many runs.

engine.py   batches across clients, without any transport
wire.py     the messages between a client and a service, and their checks
server.py   the process that listens
client.py   a `Scorer` that asks a service
"""
