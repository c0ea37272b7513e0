# The two images: `operator`, and `spark`, which is the data plane's driver and executor. Neither needs a network to
# start. Each step is a script in images/, so that it can be run without a container engine as well.
#   docker build --target operator -t changefeed-operator .
#   docker build --target spark -t changefeed-spark .
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
COPY images/base.sh /build/images/
RUN /build/images/base.sh
ENV CHANGEFEED_HOME=/opt/changefeed \
    PATH=/opt/changefeed/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

FROM base AS build
COPY images/build-tools.sh images/libraries.sh images/product.sh /build/images/
RUN /build/images/build-tools.sh
COPY requirements/ /build/requirements/

FROM build AS operator-build
RUN /build/images/libraries.sh /build/requirements operator
COPY pyproject.toml README.md /build/source/
COPY spark-apps/ /build/source/spark-apps/
COPY operator/ /build/source/operator/
COPY devcluster/ /build/source/devcluster/
RUN /build/images/product.sh /build/source

FROM base AS operator
COPY --from=operator-build /opt/changefeed/ /opt/changefeed/
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["tini", "-s", "--", "python", "-m", "changefeed_operator"]

FROM build AS spark-build
RUN /build/images/libraries.sh /build/requirements dataplane
COPY pyproject.toml README.md /build/source/
COPY spark-apps/ /build/source/spark-apps/
COPY operator/ /build/source/operator/
COPY devcluster/ /build/source/devcluster/
RUN /build/images/product.sh /build/source

FROM base AS spark
COPY images/java.sh /build/images/
RUN /build/images/java.sh
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/changefeed/spark \
    PYSPARK_PYTHON=/opt/changefeed/worker-python \
    XDG_CACHE_HOME=/opt/changefeed/cache
COPY --from=spark-build /opt/changefeed/ /opt/changefeed/
COPY images/dataplane.sh images/entrypoint.sh /build/source/images/
COPY spark-apps/changefeed_app.py /build/source/spark-apps/
RUN /build/source/images/dataplane.sh /build/source
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["/opt/changefeed/entrypoint.sh"]
CMD ["changefeed", "--help"]
