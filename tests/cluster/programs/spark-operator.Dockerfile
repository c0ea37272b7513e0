# The Spark operator as its own image has it, on our Spark: its unmodified chart runs it.
ARG BASE
FROM ${BASE}
USER root
COPY spark-operator /usr/bin/spark-operator
COPY entrypoint.sh /usr/bin/entrypoint.sh
RUN mkdir -p /etc/k8s-webhook-server/serving-certs /home/spark && chown -R 185:185 /etc/k8s-webhook-server /home/spark
USER 185:185
WORKDIR /home/spark
ENTRYPOINT ["/usr/bin/entrypoint.sh"]
