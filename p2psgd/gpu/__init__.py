"""Place of the trainer's CuPy backend: residual pass and apply on the device. Nothing else imports CuPy."""
