"""The scoring service: one model in memory scores the frames of many runs.

engine.py        the models of a service and their clients, without any transport
model_queue.py   one model's threads, and the frames that its clients have waiting
server.py        listens on the socket of sockets.py and passes frames to the engine
client.py        a `Scorer` that asks a service over connection.py
ray_pool.py      finds a service among the actors of a Ray cluster
wire.py          the messages between client and service; spec.py: models and addresses
"""
