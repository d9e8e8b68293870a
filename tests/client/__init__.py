"""The Arrow client, against Ottla and against Apache Kafka."""
