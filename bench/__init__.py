"""The same load on Ottla and on Apache Kafka, side by side: `python -m bench`, or `make bench`."""
