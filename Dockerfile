# syntax=docker/dockerfile:1
# Image of the command line and the agents, without Spark:
#   docker build -t broadloom .
#   docker run --rm -v "$PWD:/data" broadloom link tables -o plan
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source

COPY requirements/build.txt requirements/dev.txt requirements/
RUN pip install --require-hashes -r requirements/build.txt
# The tested versions, as constraints.
RUN sed -n 's/^\([a-z].*\)\\$/\1/p' requirements/dev.txt > versions.txt

COPY pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md ./
COPY packaging packaging
COPY report-ui report-ui
COPY src src
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# Names of extras, separated by commas; spark also needs java.
ARG EXTRAS=deploy
# Times in whole seconds: layers keep no more, and numba knows its files again by the time of their source.
RUN python -m venv --without-pip /opt/broadloom \
    && pip --python /opt/broadloom/bin/python install --no-compile --constraint versions.txt \
        "$(echo /wheels/*.whl)[$EXTRAS]" \
    && find /opt/broadloom -type d -name tests -prune -exec rm -rf {} + \
    && find /opt/broadloom -name '*.py' -exec touch --date=@315532800 {} + \
    && python -m compileall -q -j 0 /opt/broadloom/lib

# Kernels for any processor of the architecture: those for the build machine might not run elsewhere.
ENV NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/var/cache/broadloom
RUN /opt/broadloom/bin/broadloom compile

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="broadloom" \
      org.opencontainers.image.description="Plans, deploys and maintains the overlay of a publish/subscribe system" \
      org.opencontainers.image.source="https://github.com/broadloom/broadloom" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /data broadloom \
    && install --directory --owner=broadloom --group=broadloom /data
COPY --from=build /opt/broadloom /opt/broadloom
COPY --from=build --chown=broadloom:broadloom /var/cache/broadloom /var/cache/broadloom
ENV PATH=/opt/broadloom/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CPU_NAME=generic NUMBA_CACHE_DIR=/var/cache/broadloom
USER 10001:10001
WORKDIR /data
# No HEALTHCHECK: most verbs end by themselves. docs/install.md has those of the agents.
ENTRYPOINT ["broadloom"]
CMD ["--help"]
