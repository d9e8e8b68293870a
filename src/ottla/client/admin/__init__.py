"""Questions to a cluster, and orders: what commands, the console and those who build on the client ask for.

Each goes to the brokers that can answer it (leaders, coordinators, the controller), to each in one request, and is asked again
while the cluster moves. Needs no pyarrow. Orders for many things return what became of each, so that one refusal does not hide
the others; all else raises `ClientError`.
"""
