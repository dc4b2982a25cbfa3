# docker build --tag posexp .                          for CPUs
# docker build --build-arg EXTRA=cuda --tag posexp .   for GPUs of NVIDIA; run it with --gpus all
# docker run --rm --volume "$PWD/runs:/home/posexp/runs" posexp encoding=rpr rpr.k=4
FROM python:3.13-slim

ARG EXTRA=""
WORKDIR /opt/posexp
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY scripts/index_page.py scripts/
COPY configs configs
COPY posexp posexp
RUN pip install --no-cache-dir --no-build-isolation --constraint requirements.lock ".${EXTRA:+[$EXTRA]}" \
  && useradd --create-home posexp

USER posexp
WORKDIR /home/posexp
ENTRYPOINT ["python", "-m", "posexp.train"]
