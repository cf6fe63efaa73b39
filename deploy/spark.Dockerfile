# Spark with bkspark: a master, a worker, a driver or a Spark Connect server. Build it in the root of the sources:
#
#   docker build --file deploy/spark.Dockerfile --tag bkspark-spark .
#
# docs/deployment.md says how it is run. Its program is `spark-class`, which takes a class and its arguments.

# Debian 12: Python 3.11 and Java 17 with security updates from the distribution.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.txt requirements/spark.txt requirements/
# Every file has a hash in the lock files. pyspark is published as a source archive only: setuptools of build.txt make
# its wheel.
RUN python3 -m venv /tools \
 && /tools/bin/pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements/build.txt \
 && /tools/bin/pip wheel --no-cache-dir --require-hashes --no-deps --no-build-isolation \
      --only-binary :all: --no-binary pyspark --wheel-dir /wheels --requirement requirements/spark.txt
COPY setup.cfg pyproject.toml README.md LICENSE NOTICE ./
COPY bkspark bkspark
COPY bookie_service bookie_service
COPY pyspark_bookkeeper pyspark_bookkeeper
RUN /tools/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python3 -m venv --without-pip /opt/bkspark \
 && /tools/bin/pip --python /opt/bkspark/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps python3 tini \
 && apt-get clean && rm -rf /var/lib/apt/lists/* \
 && ln -s /opt/bkspark/lib/python3.11/site-packages/pyspark /opt/spark \
 # The user of Apache's images of Spark.
 && useradd --uid 185 --gid 0 --home-dir /work --no-create-home --shell /usr/sbin/nologin spark \
 && install --directory --owner 185 --group 0 --mode 0770 /work
COPY --from=build /opt/bkspark /opt/bkspark
# `python3` of every process is the environment's: Spark starts its Python workers with it.
# A worker's own default for the folder of its applications is below SPARK_HOME, where this user cannot write.
ENV PATH=/opt/bkspark/bin:$PATH SPARK_HOME=/opt/spark SPARK_WORKER_DIR=/work
USER 185
WORKDIR /work
EXPOSE 7077 8080 8081 15002
ENTRYPOINT ["tini", "--", "/opt/spark/bin/spark-class"]
CMD ["org.apache.spark.deploy.master.Master"]
