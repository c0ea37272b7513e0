# The two images: `operator`, and `spark`, which is the data plane's driver and executor. Neither needs a network to
# start. Each step is a script in images/, so that it can be run without a container engine as well.
#   docker build --target operator -t changefeed-operator .
#   docker build --target spark -t changefeed-spark .
# Our code is the last layer of both: a change of it is built in seconds, without a network.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
COPY images/base.sh /build/images/
RUN /build/images/base.sh
ENV CHANGEFEED_HOME=/opt/changefeed \
    PATH=/opt/changefeed/product/bin:/opt/changefeed/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

FROM base AS build
COPY images/build-tools.sh images/libraries.sh /build/images/
RUN /build/images/build-tools.sh
COPY requirements/ /build/requirements/

FROM build AS product
RUN /build/images/libraries.sh /build/requirements
COPY images/product.sh /build/images/
COPY pyproject.toml README.md /build/source/
COPY spark-apps/ /build/source/spark-apps/
COPY operator/ /build/source/operator/
COPY devcluster/ /build/source/devcluster/
RUN /build/images/product.sh /build/source

FROM build AS operator-libraries
RUN /build/images/libraries.sh /build/requirements operator

FROM base AS operator
COPY --from=operator-libraries /opt/changefeed/ /opt/changefeed/
COPY --from=product /opt/changefeed/product/ /opt/changefeed/product/
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["tini", "-s", "--", "python", "-m", "changefeed_operator"]

FROM build AS spark-libraries
RUN /build/images/libraries.sh /build/requirements dataplane

FROM base AS spark-runtime
COPY images/java.sh /build/images/
RUN /build/images/java.sh
ENV JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/changefeed/spark \
    PYSPARK_PYTHON=/opt/changefeed/worker-python \
    XDG_CACHE_HOME=/opt/changefeed/cache
COPY --from=spark-libraries /opt/changefeed/ /opt/changefeed/
COPY images/runtime.sh spark-apps/changefeed/spark/jvm/class_archive.py /build/
RUN /build/runtime.sh /build/class_archive.py

FROM spark-runtime AS spark
COPY --chmod=755 images/entrypoint.sh /opt/changefeed/
COPY --chmod=644 spark-apps/changefeed_app.py /opt/changefeed/
COPY --from=product /opt/changefeed/product/ /opt/changefeed/product/
USER 185:185
WORKDIR /home/changefeed
ENTRYPOINT ["/opt/changefeed/entrypoint.sh"]
CMD ["changefeed", "--help"]
