"""Export targets: the native configuration of mosquitto, NATS and RabbitMQ brokers."""
