"""The driver's JVM: where Java is, its class archive, its start and its end."""
