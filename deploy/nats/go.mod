module colophon/deploy/nats

go 1.26.0
