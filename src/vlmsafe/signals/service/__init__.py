"""The scoring service: one model in memory scores the frames of many runs.

engine.py        the models of a service, their clients and their eviction, without any transport
scheduler.py     the states of a model, and whose frames it computes next
model.py         one model's scorers and threads
server.py        listens on the socket of sockets.py; session.py talks to one client
metrics.py       counters and latencies, for Prometheus
client.py        a `Scorer` that asks a service over connection.py
ray_pool.py      finds a service among the actors of a Ray cluster
wire.py          the messages between client and service; spec.py: models and addresses
"""
