"""The console: any Kafka cluster in a browser, and the few things that an operator does to it. A client, like every other.

Nothing is imported here: who looks at the package does not pay for the web framework or for Arrow.
"""
