# Two images: `operator`, and `spark`, the data plane's driver and executor. Neither needs a network to start. Each step
# is a script in images/, so that it also runs without a container engine.
#   docker build --target operator -t changefeed-operator .
#   docker build --target spark -t changefeed-spark .
# `make images` builds both reproducibly, from a base image that it builds itself, with SOURCE_DATE_EPOCH.
# Our code is the last layer of both, so a code change builds in seconds, without a network.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
ARG SOURCE_DATE_EPOCH=1767225600
COPY --chmod=755 images/packages.sh images/base.sh /build/images/
RUN /build/images/base.sh
ENV CHANGEFEED_HOME=/opt/changefeed \
    PATH=/opt/changefeed/product/bin:/opt/changefeed/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
COPY --chmod=644 LICENSE NOTICE /licenses/

FROM base AS build
ARG SOURCE_DATE_EPOCH=1767225600
COPY --chmod=755 images/build-tools.sh images/libraries.sh images/compile.sh /build/images/
RUN /build/images/build-tools.sh
COPY requirements/ /build/requirements/

FROM build AS product
ARG SOURCE_DATE_EPOCH=1767225600
RUN /build/images/libraries.sh /build/requirements
COPY --chmod=755 images/product.sh /build/images/
COPY pyproject.toml README.md LICENSE NOTICE /build/source/
COPY spark-apps/ /build/source/spark-apps/
COPY operator/ /build/source/operator/
RUN /build/images/product.sh /build/source

FROM build AS operator-libraries
ARG SOURCE_DATE_EPOCH=1767225600
RUN /build/images/libraries.sh /build/requirements operator

FROM base AS operator
COPY --from=operator-libraries /opt/changefeed/ /opt/changefeed/
COPY --from=product /opt/changefeed/product/ /opt/changefeed/product/
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["tini", "-s", "--", "python", "-m", "changefeed_operator"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="changefeed-operator" \
      org.opencontainers.image.description="Runs Changefeeds: delivers row changes from TiKV and TiDB or PostgreSQL to a sink" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM build AS spark-libraries
ARG SOURCE_DATE_EPOCH=1767225600
RUN /build/images/libraries.sh /build/requirements dataplane

FROM base AS spark-runtime
ARG SOURCE_DATE_EPOCH=1767225600
COPY --chmod=755 images/java.sh images/undated_keystore.py /build/images/
RUN /build/images/java.sh
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/changefeed/spark \
    PYSPARK_PYTHON=/opt/changefeed/worker-python \
    XDG_CACHE_HOME=/opt/changefeed/cache
COPY --from=spark-libraries /opt/changefeed/ /opt/changefeed/
COPY --chmod=755 images/runtime.sh /build/images/
COPY --chmod=644 images/spark-classes.txt spark-apps/changefeed/spark/jvm/class_archive.py /build/
RUN /build/images/runtime.sh /build/class_archive.py /build/spark-classes.txt

FROM spark-runtime AS spark
COPY --chmod=755 images/entrypoint.sh /opt/changefeed/
COPY --chmod=644 spark-apps/changefeed_app.py /opt/changefeed/
COPY --from=product /opt/changefeed/product/ /opt/changefeed/product/
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["/opt/changefeed/entrypoint.sh"]
CMD ["changefeed", "--help"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="changefeed-spark" \
      org.opencontainers.image.description="Driver and executor for changefeeds, on Apache Spark" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
