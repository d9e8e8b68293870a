"""Real clients, unchanged and with their default settings, against a real `ottla server` process."""
