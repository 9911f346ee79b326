# SPDX-License-Identifier: Apache-2.0
#
# docker build --build-arg VERSION=$(git describe --tags --always) -t rialto .

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /rialto ./cmd/rialto
RUN mkdir -m 700 /data && mkdir -m 1777 /scratch

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /rialto /rialto
COPY --from=build --chown=65532:65532 /data /data
COPY --from=build --chown=65532:65532 /scratch /tmp
USER 65532:65532
VOLUME /data
# All addresses of the container: what the host publishes is the host's choice.
ENV RIALTO_DATA=/data RIALTO_LISTEN=0.0.0.0:8080 RIALTO_MQTT=0.0.0.0:1883
EXPOSE 8080 1883
STOPSIGNAL SIGTERM
ENTRYPOINT ["/rialto"]
CMD ["serve"]
