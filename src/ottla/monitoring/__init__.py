"""What a broker tells about itself: `/metrics` for Prometheus, `/healthz` for whoever keeps it alive."""
